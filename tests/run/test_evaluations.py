"""Evaluations next to training: of a pinned adapter, each of them made, also after a stop."""

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_records import make_episode
from metric_lines import read_metrics, read_steps
from run_world import World, check_balance, episodes, stops

from legos.errors import ArenaError, ConfigError
from legos.records.names import POLICY, evaluated_name
from legos.run.checkpoint import checkpoint_steps
from legos.track.jsonl import JsonlTracker

EVALUATED = evaluated_name(POLICY)
STOPS = range(0, 245, 4)


def beside(path: Path, **settings: Any) -> World:
    given: dict[str, Any] = {"deterministic": False, **settings}
    return World(path, **given)


def evaluated(world: World) -> list[object]:
    return [line["step"] for line in read_metrics(world.folder.evaluations)]


def shown(world: World) -> list[object]:
    """The steps with figures in metrics.jsonl, in the order of its lines."""
    lines = read_metrics(world.folder.metrics)
    return [line["step"] for line in lines if "eval/share" in line]


class GoesOn(JsonlTracker):
    """Lets the waiting evaluation go on when the metrics of a step are logged."""

    def __init__(self, world: World, step: int, copy: Path | None = None) -> None:
        super().__init__(world.folder.metrics)
        self._world, self._step, self._copy = world, step, copy

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        super().log(metrics, step=step)
        if step == self._step and "loss" in metrics:
            self._world.evaluation.go_on.set()
        if step == 3 and "loss" not in metrics and self._copy is not None:
            shutil.copytree(self._world.folder.path, self._copy)


def test_an_evaluation_does_not_delay_the_steps_and_shows_the_adapter_of_its_step(
    tmp_path: Path,
) -> None:
    world = beside(tmp_path / "run").start()
    world.evaluation.waits_at = 1
    assert world.go(tracker=GoesOn(world, step=5))
    assert evaluated(world) == shown(world) == [0, 3, 6]
    lines = read_metrics(world.folder.metrics)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 3, 6, 6]
    assert lines[6] == {"step": 3, "eval/share": 0.5, "eval/vs_random_win": 0.25}
    assert world.evaluation.adapters == [EVALUATED] * 3
    pinned = [a for a in world.publisher.published if a.name == EVALUATED]
    assert [adapter.version for adapter in pinned] == [0, 3, 6]
    assert world.publisher.dropped == [EVALUATED] * 3
    assert (world.folder.adapters / "v3").is_dir()
    assert world.run.last["policy_version"] == 6
    check_balance(world)
    assert world.state["trainer"]["ledger"]["generated"] == world.sampled + 15


def test_a_deterministic_run_waits_for_its_evaluations(tmp_path: Path) -> None:
    world = World(tmp_path / "run").start()
    assert world.go()
    lines = read_metrics(world.folder.metrics)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    assert shown(world) == [0, 3, 6]


def test_an_evaluation_that_is_due_while_one_runs_waits_for_it(tmp_path: Path) -> None:
    world = beside(tmp_path / "run", evaluate_every=1).start()
    assert world.go()
    assert evaluated(world) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(shown(world), key=str) == [0, 1, 2, 3, 4, 5, 6]
    pinned = [a.version for a in world.publisher.published if a.name == EVALUATED]
    assert pinned == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("turns", stops(STOPS, pytest.mark.slow, every=5))
def test_a_stop_anywhere_loses_no_evaluation(turns: int, whole: World, tmp_path: Path) -> None:
    stopped = beside(tmp_path / "run", evaluate_every=2).start()
    assert stopped.go(stop_after=turns) or turns < STOPS[-1]
    check_balance(stopped)
    assert stopped.state["trainer"]["ledger"]["generated"] == asyncio.run(stopped.count())
    resumed = beside(tmp_path / "run", evaluate_every=2).resume()
    if not resumed.run.finished:
        assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert evaluated(resumed) == sorted(shown(resumed), key=str) == [0, 2, 4, 6]
    lines = read_metrics(resumed.folder.evaluations)
    assert [line["policy_version"] for line in lines] == [0, 2, 4, 6]
    assert [line["step"] for line in read_steps(resumed.folder.metrics)] == [1, 2, 3, 4, 5, 6]
    check_balance(resumed)


def test_a_stopped_evaluation_is_made_by_the_resumed_run(tmp_path: Path) -> None:
    stopped = beside(tmp_path / "run").start()
    stopped.evaluation.waits_at = 1
    assert not stopped.go(stop_after=165)
    assert stopped.run.step > 3
    assert stopped.state["evaluating"] == [3, {POLICY: 3}]
    assert stopped.publisher.dropped == [EVALUATED] * 2
    resumed = beside(tmp_path / "run").resume()
    assert resumed.go()
    assert resumed.publisher.published[1].digest == stopped.publisher.published[5].digest
    assert evaluated(resumed) == shown(resumed) == [0, 3, 6]


def test_a_stop_while_the_next_one_waits_loses_neither(tmp_path: Path) -> None:
    stopped = beside(tmp_path / "run", evaluate_every=1).start()
    stopped.evaluation.waits_at = 1
    assert not stopped.go(stop_after=165)
    assert stopped.run.step == 2
    assert stopped.state["evaluating"] == [1, {POLICY: 1}]
    resumed = beside(tmp_path / "run", evaluate_every=1).resume()
    assert resumed.go()
    assert evaluated(resumed) == [0, 1, 2, 3, 4, 5, 6]


def test_a_kill_after_the_figures_repeats_them_once(tmp_path: Path) -> None:
    killed = beside(tmp_path / "run", checkpoint_every=4).start()
    killed.evaluation.waits_at = 1
    assert killed.go(tracker=GoesOn(killed, step=5, copy=tmp_path / "copy"))
    copy = tmp_path / "copy"
    assert [path.name for path in (copy / "checkpoints").iterdir()]
    resumed = beside(copy, checkpoint_every=4).resume()
    assert resumed.run.step == 4
    assert resumed.go()
    assert evaluated(resumed) == shown(resumed) == [0, 3, 6]


class Closed(JsonlTracker):
    """Nobody reads the console any more when the figures of step 3 have been written."""

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        super().log(metrics, step=step)
        if step == 3 and "loss" not in metrics:
            raise BrokenPipeError("standard output was closed")


def test_an_error_after_the_figures_repeats_them_once(whole: World, tmp_path: Path) -> None:
    failed = World(tmp_path / "run").start()
    with pytest.raises(BrokenPipeError):
        failed.go(tracker=Closed(failed.folder.metrics))
    assert failed.state["trainer"]["step"] == 3
    resumed = World(tmp_path / "run").resume()
    assert resumed.go()
    assert evaluated(resumed) == shown(resumed) == [0, 3, 6]
    assert episodes(resumed.folder) == episodes(whole.folder)
    check_balance(resumed)


def test_a_lost_adapter_costs_an_evaluation_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = beside(tmp_path / "run").start()
    stopped.evaluation.waits_at = 1
    assert not stopped.go(stop_after=165)
    shutil.rmtree(stopped.folder.adapters / "v3")
    resumed = beside(tmp_path / "run").resume()
    assert resumed.go()
    assert "step 3 is not evaluated" in caplog.text
    assert evaluated(resumed) == [0, 6]


def test_the_checkpoint_of_an_evaluation_that_becomes_the_best_is_kept(tmp_path: Path) -> None:
    settings = {"keep_best": "share", "keep_checkpoints": 1, "checkpoint_every": 1}
    world = beside(tmp_path / "run", **settings).start()
    world.evaluation.waits_at, world.evaluation.shares = 1, {2: 0.9}
    assert world.go(tracker=GoesOn(world, step=5))
    assert list(checkpoint_steps(world.folder.checkpoints)) == [3, 6]
    assert world.state["best"] == ["share", 3, 0.9]


def test_a_failing_evaluation_ends_the_run_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = beside(tmp_path / "run").start()
    world.evaluation.waits_at = 1

    async def fails() -> None:
        raise ArenaError("no cards")

    monkeypatch.setattr(world.evaluation.go_on, "wait", fails)
    with pytest.raises(ArenaError, match="no cards"):
        world.go()
    assert world.state["evaluating"] == [3, {POLICY: 3}]
    assert world.publisher.dropped == [EVALUATED] * 2
    resumed = beside(tmp_path / "run").resume()
    assert resumed.go()
    assert evaluated(resumed) == [0, 3, 6]


def test_plays_of_evaluations_are_kept_once_also_after_a_kill(tmp_path: Path) -> None:
    def made(path: Path) -> World:
        world = beside(path, checkpoint_every=4, plays_kept=0.5)
        world.evaluation.episodes = tuple(make_episode({}) for _ in range(3))
        return world

    killed = made(tmp_path / "run").start()
    killed.evaluation.waits_at = 1
    assert killed.go(tracker=GoesOn(killed, step=5, copy=tmp_path / "copy"))
    resumed = made(tmp_path / "copy").resume()
    assert resumed.go()
    for world in (killed, resumed):
        plays = [json.loads(line) for line in world.folder.episodes.read_text().splitlines()]
        of_evaluations = [play["step"] for play in plays if play.get("evaluation")]
        assert sorted(of_evaluations) == [0] * 3 + [3] * 3 + [6] * 3
        trained = {play["step"] for play in plays if "evaluation" not in play}
        assert trained == {1, 2, 3, 4, 5, 6}


def test_an_evaluation_whose_plays_all_failed_is_not_the_best_and_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path / "run", keep_best="share").start()
    world.evaluation.shares = {2: None}
    assert world.go()
    assert "the evaluation of step 3 has no 'share'" in caplog.text
    assert world.state["best"] == ["share", 0, 0.5]


def test_a_first_evaluation_may_lack_the_metric_where_plays_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path / "run", keep_best="reward_mean").start()
    metrics = world.evaluation.metrics

    async def of_plays(**given: Any) -> dict[str, Any]:
        return {**await metrics(**given), "plays": 64, "failed": 64, "reward_mean": None}

    monkeypatch.setattr(world.evaluation, "metrics", of_plays)
    assert world.go()
    assert "the evaluation of step 0 has no 'reward_mean'" in caplog.text
    assert world.state["best"] is None


def test_a_metric_that_no_evaluation_can_have_is_named(tmp_path: Path) -> None:
    world = World(tmp_path / "run", keep_best="reward_mean").start()
    with pytest.raises(ConfigError, match="keep_best is 'reward_mean' but the evaluation of arena"):
        world.go()


def test_a_resume_refuses_a_metric_that_no_evaluation_can_have(tmp_path: Path) -> None:
    assert World(tmp_path / "run", keep_best="share").start().go()
    mistyped = World(tmp_path / "run", keep_best="shares", steps=8)
    with pytest.raises(ConfigError, match="keep_best is 'shares' but the evaluation of arena"):
        mistyped.resume()
