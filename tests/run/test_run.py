"""A run without a model: it can be stopped, crash, or fail anywhere, and goes on exactly."""

import asyncio
import errno
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend
from metric_lines import read_metrics, read_steps
from run_world import World, check_balance, episodes, stops

from legos.arena.arena import Arena
from legos.credit import RAECredit
from legos.errors import ArenaError, CheckpointError, DeviceError
from legos.play.context import PlayContext
from legos.play.step import play_each
from legos.protocols import Snapshot
from legos.records.episode import Episode, Task
from legos.run.checkpoint import checkpoint_steps, newest_whole, read_state
from legos.track.jsonl import JsonlTracker

STOPS, STOPS_WITH_LAG = range(238), range(0, 112, 3)


def test_an_undisturbed_run_leaves_everything(whole: World) -> None:
    folder = whole.folder
    lines = read_steps(folder.metrics)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in read_metrics(folder.evaluations)] == [0, 3, 6]
    figures = [line for line in read_metrics(folder.metrics) if "eval/vs_random_win" in line]
    assert [line["step"] for line in figures] == [0, 3, 6]
    assert all("eval/exploitability" not in line for line in figures)
    assert [*dict.fromkeys(e["step"] for e in episodes(folder))] == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(path.name for path in folder.adapters.iterdir()) == ["v0", "v2", "v3", "v4", "v6"]
    assert list(checkpoint_steps(folder.checkpoints)) == [2, 4, 6]
    assert whole.run.finished
    assert whole.run.first["policy_version"] == 0
    assert whole.run.last["policy_version"] == 6


def test_books_hold_every_token_that_was_sampled(whole: World) -> None:
    check_balance(whole)
    ledger = whole.state["trainer"]["ledger"]
    assert ledger["generated"] == whole.sampled + 15
    assert ledger["discarded"] == {"evaluation": 15}
    for line in read_steps(whole.folder.metrics):
        uses = ("trained", "filtered", "discarded", "queued")
        assert line["tokens_generated"] == sum(int(line[f"tokens_{use}"] or 0) for use in uses)


@pytest.mark.parametrize("turns", stops(STOPS, pytest.mark.slow, every=11))
def test_a_stop_anywhere_leaves_a_checkpoint_that_goes_on_exactly(
    turns: int, whole: World, tmp_path: Path
) -> None:
    stopped = World(tmp_path / "stopped").start()
    finished = stopped.go(stop_after=turns)
    check_balance(stopped)
    assert stopped.state["trainer"]["ledger"]["generated"] == asyncio.run(stopped.count())
    assert finished == stopped.run.finished
    assert finished or turns < STOPS[-1]
    resumed = World(tmp_path / "stopped").resume()
    assert resumed.run.step == stopped.run.step
    if not finished:
        assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert resumed.arena.state() == whole.arena.state()
    check_balance(resumed)
    assert [line["step"] for line in read_steps(resumed.folder.metrics)] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in read_metrics(resumed.folder.evaluations)] == [0, 3, 6]
    assert episodes(resumed.folder) == episodes(whole.folder)


@pytest.mark.parametrize("turns", stops(STOPS_WITH_LAG, pytest.mark.slow, every=4))
def test_a_stop_anywhere_in_a_run_with_lag_loses_no_play(turns: int, tmp_path: Path) -> None:
    def world() -> World:
        return World(tmp_path / "run", limit=2, players=3)

    stopped = world().start()
    assert stopped.go(stop_after=turns) or turns < STOPS_WITH_LAG[-1]
    check_balance(stopped)
    assert stopped.state["trainer"]["ledger"]["generated"] == asyncio.run(stopped.count())
    resumed = world().resume()
    assert resumed.arena.state() == json.loads(json.dumps(stopped.arena.state()))
    booked = resumed.trainer.ledger.generated
    if not resumed.run.finished:
        assert resumed.go()
    check_balance(resumed)
    assert resumed.state["trainer"]["ledger"]["generated"] == booked + asyncio.run(resumed.count())
    for line in read_steps(resumed.folder.metrics):
        assert int(line["staleness_max"] or 0) <= 2


class Looks(JsonlTracker):
    """Remembers the example and the count that the run had when it logged each step."""

    def __init__(self, world: World) -> None:
        super().__init__(world.folder.metrics)
        self._run, self.seen = world.run, dict[int, tuple[Any, Any]]()

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        super().log(metrics, step=step)
        self.seen.setdefault(step, (self._run.example, self._run.count))


def test_a_run_tells_how_far_it_has_come_and_shows_plays_from_the_first_evaluation_on(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "run").start()
    looks = Looks(world)
    assert world.go(tracker=looks)
    [evaluated] = world.evaluation.episodes
    assert looks.seen[0] == (None, world.evaluation.count)
    assert looks.seen[1] == (evaluated, world.backend.passes)  # it logs a step while it trains
    assert looks.seen[2][0] not in (None, evaluated)


class Crash(JsonlTracker):
    """Copies the folder at one step as a crash would leave it, after the step's line is written."""

    def __init__(self, world: World, step: int, copy: Path) -> None:
        super().__init__(world.folder.metrics)
        self._world, self._step, self._copy = world, step, copy

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        super().log(metrics, step=step)
        if step == self._step and "loss" in metrics:
            shutil.copytree(self._world.folder.path, self._copy)
            with (self._copy / "episodes.jsonl").open("a") as file:
                file.write('{"step": 5, "arena"')


@pytest.mark.parametrize("step", [3, 4, 5, 6])
def test_a_crash_goes_on_from_the_newest_checkpoint_without_traces(
    step: int, whole: World, tmp_path: Path
) -> None:
    crashed = World(tmp_path / "run").start()
    crashed.go(tracker=Crash(crashed, step, tmp_path / "copy"))
    resumed = World(tmp_path / "copy").resume()
    assert resumed.run.step == (step - 1) // 2 * 2
    assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert read_steps(resumed.folder.metrics) == [
        {**line, "step_s": ours["step_s"]}
        for line, ours in zip(
            read_steps(whole.folder.metrics), read_steps(resumed.folder.metrics), strict=True
        )
    ]
    assert episodes(resumed.folder) == episodes(whole.folder)
    ours, theirs = resumed.folder.evaluations, whole.folder.evaluations
    assert ours.read_bytes() == theirs.read_bytes()
    assert resumed.state["trainer"] == whole.state["trainer"]
    assert resumed.run.first == whole.run.first


async def play_on_another_node(
    context: PlayContext, arena: Arena, plays: Sequence[tuple[Task, int]]
) -> list[Episode]:
    return await play_each(context, arena, plays)


@pytest.mark.parametrize("play", [play_each, play_on_another_node])
@pytest.mark.parametrize("reported", [{"worked_seconds_total": 1.0}, {}])
def test_the_engine_is_idle_only_where_its_work_for_the_plays_is_known(
    play: Any, reported: dict[str, float], tmp_path: Path
) -> None:
    world = World(tmp_path / "run", steps=1, play=play, stats=lambda: reported).start()
    assert world.go()
    [line] = read_steps(world.folder.metrics)
    assert ("loop/engine_idle_share" in line) == (play is play_each and bool(reported))


def test_time_makes_checkpoints_due_as_steps_do(tmp_path: Path) -> None:
    clock = count(0.0, 150.0)  # it is read at each step and checkpoint
    world = World(tmp_path / "run", clock=clock, checkpoint_every=0, keep_checkpoints=9).start()
    assert world.go()
    assert list(checkpoint_steps(world.folder.checkpoints)) == [0, 2, 4, 6]


def test_an_evaluation_made_up_for_at_a_resume_is_not_made_again(tmp_path: Path) -> None:
    stopped = World(tmp_path / "run").start()
    stopped.evaluation.waits_at = 1
    assert not stopped.go(stop_after=120)
    killed = World(tmp_path / "run").resume()
    assert killed.go(tracker=Crash(killed, 4, tmp_path / "copy"))
    resumed = World(tmp_path / "copy").resume()
    assert resumed.go()
    assert [line["step"] for line in read_metrics(resumed.folder.evaluations)] == [0, 3, 6]


def test_a_stop_in_the_first_evaluation_leaves_it_to_the_resumed_run(tmp_path: Path) -> None:
    stopped = World(tmp_path / "run").start()
    stopped.evaluation.waits_at = 0
    assert not stopped.go(stop_after=5)
    assert stopped.state["first"] == {}
    resumed = World(tmp_path / "run").resume()
    assert resumed.go()
    assert resumed.run.first["policy_version"] == 0


def test_a_stop_in_the_last_evaluation_leaves_it_to_the_resumed_run(tmp_path: Path) -> None:
    stopped = World(tmp_path / "run", steps=1).start()
    stopped.evaluation.waits_at = 1
    assert not stopped.go(stop_after=200)
    assert len(read_steps(stopped.folder.metrics)) == 1
    assert [line["step"] for line in read_metrics(stopped.folder.evaluations)] == [0]
    resumed = World(tmp_path / "run", steps=1).resume()
    assert not resumed.run.finished
    assert resumed.go()
    assert [line["step"] for line in read_metrics(resumed.folder.evaluations)] == [0, 1]
    assert resumed.run.last["policy_version"] == 1
    assert World(tmp_path / "run", steps=1).resume().run.finished


def test_a_finished_run_goes_on_when_it_is_given_more_steps(whole: World, tmp_path: Path) -> None:
    shutil.copytree(whole.folder.path, tmp_path / "run")
    done = World(tmp_path / "run").resume()
    assert done.run.finished
    assert done.run.last == whole.run.last
    longer = World(tmp_path / "run", steps=8).resume()
    assert not longer.run.finished
    assert longer.go()
    assert [line["step"] for line in read_steps(longer.folder.metrics)] == list(range(1, 9))
    assert longer.run.last["policy_version"] == 8


def test_a_resume_with_other_evaluations_begins_with_a_new_first_one(
    whole: World, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder.path, tmp_path / "run")
    world = World(tmp_path / "run")
    world.run.resume(newest_whole(world.folder.checkpoints), same_evaluation=False)
    assert not world.run.finished
    assert world.go()
    assert world.run.first == world.run.last
    assert world.run.first["policy_version"] == whole.run.last["policy_version"]
    lines = [read_metrics(each.folder.evaluations) for each in (world, whole)]
    assert [[line["step"] for line in each] for each in lines] == [[0, 3, 6]] * 2


def test_an_arena_that_keeps_failing_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path / "run").start()
    world.arena.fails = True
    with pytest.raises(ArenaError, match=r"(?s)4 of 4 plays of arena 'duel' failed.*no cards"):
        world.go()
    assert world.state["trainer"]["step"] == 0
    assert World(tmp_path / "run").resume().go()


def test_a_rule_whose_state_is_no_json_ends_the_run_at_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RAECredit, "state", lambda rule: rule.baselines)  # its keys are pairs
    world = World(tmp_path / "run").start()
    with pytest.raises(ArenaError, match=r"(?s)state\(\) of RAECredit.*keys must be") as caught:
        world.go()
    assert world.run.step == 1
    assert not hasattr(caught.value, "__notes__")  # the checkpoint fails for the same reason


class Full(JsonlTracker):
    """The disk is full when the third step's line is written."""

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        if step == 3:
            raise CheckpointError("cannot write metrics.jsonl: No space left on device")
        super().log(metrics, step=step)


def test_a_full_disk_in_the_metrics_costs_no_line(whole: World, tmp_path: Path) -> None:
    world = World(tmp_path / "run").start()
    with pytest.raises(CheckpointError, match="cannot write metrics"):
        world.go(tracker=Full(world.folder.metrics))
    assert world.state["trainer"]["step"] == 3
    resumed = World(tmp_path / "run").resume()
    assert resumed.go()
    lines = read_steps(resumed.folder.metrics)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [set(line) for line in lines] == [set(line) for line in read_steps(whole.folder.metrics)]
    assert resumed.backend.trail == whole.backend.trail


def test_a_full_disk_at_a_checkpoint_is_named_once_and_keeps_the_one_before(
    whole: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "run").start()
    snapshot = FakeBackend.snapshot

    def full(self: FakeBackend) -> "Future[Snapshot]":
        def refuse(folder: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        found: Future[Snapshot] = Future()
        found.set_result(refuse)
        return snapshot(self) if self.version <= 2 else found

    monkeypatch.setattr(FakeBackend, "snapshot", full)
    with pytest.raises(CheckpointError, match=r"step-000004 .*No space") as caught:
        world.go()
    assert not hasattr(caught.value, "__notes__")  # the closing one fails alike
    monkeypatch.undo()
    assert list(checkpoint_steps(world.folder.checkpoints)) == [0, 2]
    resumed = World(tmp_path / "run").resume()
    assert sorted(path.name for path in world.folder.adapters.iterdir()) == ["v0", "v2"]
    assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail


def test_an_error_is_not_lost_where_its_checkpoint_fails_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "run").start()

    def lost(self: FakeBackend) -> "Future[Snapshot]":
        raise DeviceError("the device is lost")

    class Fails(JsonlTracker):
        def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
            if step == 3:
                monkeypatch.setattr(FakeBackend, "snapshot", lost)
                raise ArenaError("no cards")
            super().log(metrics, step=step)

    with pytest.raises(ArenaError, match="no cards") as caught:
        world.go(tracker=Fails(world.folder.metrics))
    assert caught.value.__notes__ == ["the device is lost"]


@pytest.mark.parametrize(
    "damage",
    [
        {"arenas": {}},
        {"queued": {"duel": [{"samples": 3}]}},
        {"trainer": None},
        {"evaluated_step": ...},
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_forgotten(
    damage: dict[str, Any], whole: World, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder.path, tmp_path / "run")
    place = tmp_path / "run" / "checkpoints" / "step-000004"
    state = read_state(place) | damage
    kept = {key: value for key, value in state.items() if value is not ...}
    (place / "state.json").write_text(json.dumps(kept))
    world = World(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="does not fit this run"):
        world.run.resume(place)
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before
