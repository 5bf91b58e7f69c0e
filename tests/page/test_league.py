"""The opponents of a run, from its newest checkpoint."""

from pathlib import Path

import pytest
from made_runs import add_lines, answered, made_run, page_of, step_line
from made_snapshots import adapter, weak

from legos.apps.league import league
from legos.errors import CheckpointError
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool
from legos.run.checkpoint import write_checkpoint
from legos.run.folder import RunFolder

RATED = {"elo": 7.0, "elo_low": 1.0, "elo_high": 12.0}


def with_league(folder: RunFolder) -> None:
    """A checkpoint in which policy@2 beats policy@0 and random; policy@4 has met nobody."""
    pool, table = Pool(8), PayoffTable()
    for step in (0, 2, 4):
        pool.add(adapter(step), step, weak)
    for theirs in ("policy@0", "random"):
        for reward in (1.0,) * 15 + (-1.0,) * 5:
            table.add("policy@2", theirs, "first", reward, -reward)
            table.add(theirs, "policy@2", "second", -reward, reward)
    stored = {"pool": pool.state(), "table": table.state(), "unit": 1.0}
    state = {"trainer": {"step": 4}, "arenas": {"nim": {"matchmaker": stored}}}
    write_checkpoint(folder.checkpoints, 4, lambda _: state, keep=1)


def test_members_are_rated_and_their_scores_shown(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    with_league(folder)
    add_lines(folder.metrics, [step_line(4, **{f"league/{n}": v for n, v in RATED.items()})])
    add_lines(folder.metrics, [step_line(5, **{"league/plays_past": 12.0})])
    [found] = answered(page_of(parent=runs), "league", run="one")["leagues"]
    assert next(iter(found["ratings"])) == "policy@2"
    assert found["ratings"]["random"]["rating"] == 0.0
    assert found["ratings"]["policy@2"]["low"] > 0
    assert found["matrix"]["policy@2"]["random"] == {"score": 0.75, "reward": 0.5, "plays": 20.0}
    assert "policy@0" not in found["matrix"]["random"]
    assert found["alone"] == ["policy@4"]
    assert found["elo"] == [[4, 7.0, 1.0, 12.0]]
    assert found["met"] == {"past": {"plays": [[5, 12.0]], "score": []}}
    assert league(str(folder.path))["nim"]["ratings"] == found["ratings"]


def test_a_run_without_opponents_has_none(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    assert answered(page_of(parent=runs), "league", run="one") == {"leagues": [], "shares": {}}
    state = {"trainer": {"step": 4}, "arenas": {"nim": {"matchmaker": {}}}}
    write_checkpoint(folder.checkpoints, 4, lambda _: state, keep=1)
    assert answered(page_of(parent=runs), "league", run="one")["leagues"] == []
    with pytest.raises(CheckpointError, match=r"has no league.*--play.opponents self=0.5"):
        league(str(folder.path))
