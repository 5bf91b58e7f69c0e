"""A run of two arenas: exact after a stop anywhere, with a balanced account."""

import json
from pathlib import Path

import pytest
from metric_lines import read_steps
from run_world import World, check_balance, stops
from stored_plays import TIMES

STOPS, STOPS_WITH_LAG = range(0, 313, 13), range(5, 124, 19)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("mix") / "run", mixed=True).start()
    assert world.go()
    return world


def test_both_arenas_are_trained_and_their_figures_carry_their_names(whole: World) -> None:
    lines = read_steps(whole.folder.metrics)
    tokens = {a: sum(n[f"batches/{a}/tokens"] or 0 for n in lines) for a in ("duel", "solo")}
    assert sum(tokens.values()) == lines[-1]["tokens_trained"]
    last = lines[-1]
    owed = {arena: last[f"replays/{arena}/deficit_tokens"] for arena in tokens}
    for arena, trained in tokens.items():  # the budget of six steps, but for what is owed
        assert trained + (owed[arena] or 0) == 6 * 20
    assert {"batches/duel/reward/first", "batches/solo/reward/only"} <= last.keys()
    assert {"replays/duel/tokens", "batches/solo/reward_std"} <= set().union(*lines)
    assert not {"reward/first", "reward/only"} & last.keys()
    check_balance(whole)


@pytest.mark.parametrize("turns", stops(STOPS, pytest.mark.slow, every=3))
def test_a_stop_anywhere_leaves_a_checkpoint_that_goes_on_exactly(
    turns: int, whole: World, tmp_path: Path
) -> None:
    def world() -> World:
        return World(tmp_path / "stopped", mixed=True)

    stopped = world().start()
    finished = stopped.go(stop_after=turns)
    assert finished or turns < STOPS[-1]
    check_balance(stopped)
    resumed = world().resume()
    if not finished:
        assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert resumed.state["batcher"] == whole.state["batcher"]
    assert resumed.state["arenas"] == json.loads(json.dumps(whole.state["arenas"]))
    ours, theirs = (
        [{k: v for k, v in line.items() if k not in TIMES} for line in read_steps(w.folder.metrics)]
        for w in (resumed, whole)
    )
    named = [key for line in theirs for key in line if key.startswith(("batches/", "replays/"))]
    assert named
    for mine, line in zip(ours, theirs, strict=True):
        assert {k: mine.get(k) for k in line if k in named} == {
            k: v for k, v in line.items() if k in named
        }


@pytest.mark.parametrize("turns", STOPS_WITH_LAG[::2])
def test_a_stop_with_lag_loses_no_play(turns: int, tmp_path: Path) -> None:
    def world() -> World:
        return World(tmp_path / "run", mixed=True, limit=2, players=3)

    stopped = world().start()
    assert stopped.go(stop_after=turns) or turns < STOPS_WITH_LAG[-1]
    check_balance(stopped)
    resumed = world().resume()
    assert resumed.other.state() == json.loads(json.dumps(stopped.other.state()))
    if not resumed.run.finished:
        assert resumed.go()
    check_balance(resumed)
