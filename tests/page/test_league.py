"""The opponents of a run, from its newest checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import add_lines, answered, made_run, page_of, step_line
from made_snapshots import adapter, take

from legos.apps.league import league
from legos.config.resolve import read_config
from legos.errors import CheckpointError
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool
from legos.records.episode import Episode, Task
from legos.records.names import frozen_name
from legos.run.checkpoint import write_checkpoint
from legos.run.folder import RunFolder
from legos.run.people import PEOPLE, PersonalPlay

RATED = {"elo": 7.0, "elo_low": 1.0, "elo_high": 12.0}


def with_league(folder: RunFolder, *, size: int = 8) -> None:
    """A checkpoint in which policy@2 beats policy@0 and random; policy@4 has met nobody."""
    pool, table = Pool(size), PayoffTable()
    for step in (0, 2, 4):
        take(pool, adapter(step), step)
    for theirs in ("policy@0", "random"):
        for reward in (1.0,) * 15 + (-1.0,) * 5:
            table.account("policy@2", theirs, ["first"], ["second"]).count(reward, -reward)
    stored = {"pool": pool.state(), "table": table.state(), "unit": 1.0}
    arenas = {name: {"matchmaker": {}} for name in read_config(folder.settings).arenas}
    state = {"trainer": {"step": 4}, "arenas": {**arenas, "nim": {"matchmaker": stored}}}
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


def test_the_only_league_of_a_mix_has_its_course_too(runs: Path) -> None:
    shares = {"self": 0.75, "past": 0.25}
    mix = {"kuhn": {"share": 0.5}, "nim": {"share": 0.5, "opponents": shares}}
    folder = made_run(runs / "one", steps=3, mix=mix)
    with_league(folder)
    add_lines(folder.metrics, [step_line(4, **{f"league/nim/{n}": v for n, v in RATED.items()})])
    [found] = answered(page_of(parent=runs), "league", run="one")["leagues"]
    assert (found["arena"], found["elo"]) == ("nim", [[4, 7.0, 1.0, 12.0]])
    assert found["shares"] == shares


def kept(opponent: str, reward: float, *, name: str = "ada", **changes: Any) -> None:
    """Keep a play of a person, who moved second."""
    members = {"first": opponent, "second": f"person:{name}"}
    rewards = {"first": -reward, "second": reward}
    arena, options = changes.get("arena", "nim"), changes.get("options", {})
    result = Episode(arena=arena, task=Task(id=""), rollouts=(), rewards=rewards)
    PersonalPlay(options=options, members=members, result=result).keep()


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place in which nobody has played yet."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("people")
def test_people_are_rated_by_their_plays_against_members(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    with_league(folder)
    weights = [frozen_name(adapter(step).digest) for step in (0, 2, 4)]
    before = league(str(folder.path))["nim"]
    for reward in (1.0, 1.0, 1.0, -1.0):
        kept(weights[1], reward)
        kept(weights[2], reward)  # it has met nobody, and counts as the one before
    kept("random", 1.0)
    kept("base of builtin", 1.0)  # whom the policy has not met
    kept(frozen_name("0" * 32), -1.0)  # weights of another run
    kept(weights[1], -1.0, arena="kuhn")
    kept(weights[1], -1.0, options={"largest": 5})
    kept(frozen_name("0" * 32), 1.0, name="bob")
    found = league(str(folder.path))["nim"]
    cells = found["matrix"]["person:ada"]
    assert cells["policy@2"] == {"score": 0.75, "reward": 0.5, "plays": 8.0}
    assert {who: cell["plays"] for who, cell in cells.items()} == {"policy@2": 8, "random": 1}
    assert found["matrix"]["policy@2"]["person:ada"]["score"] == 0.25
    ada = found["ratings"].pop("person:ada")
    assert (ada["plays"], ada["step"]) == (9.0, None)
    assert found["ratings"]["policy@2"]["rating"] < ada["rating"]
    assert ada["low"] < ada["rating"] < ada["high"]
    assert found["ratings"].keys() == before["ratings"].keys()
    assert found["alone"] == before["alone"] == ["policy@4"]
    [shown] = answered(page_of(parent=runs), "league", run="one")["leagues"]
    assert shown["ratings"]["person:ada"] == ada


@pytest.mark.usefixtures("people")
def test_a_snapshot_that_has_left_is_rated_where_a_person_has_met_it(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    with_league(folder, size=2)  # policy@2 has left
    assert "policy@2" not in league(str(folder.path))["nim"]["ratings"]
    kept(frozen_name(adapter(2).digest), -1.0)
    kept(frozen_name(adapter(4).digest), -1.0, name="bob")
    found = league(str(folder.path))["nim"]
    assert found["ratings"]["policy@2"]["step"] == 2
    for name in ("ada", "bob"):
        assert found["matrix"][f"person:{name}"].keys() == {"policy@2"}
    assert found["alone"] == ["policy@4"]


@pytest.mark.usefixtures("people")
def test_a_damaged_file_of_people_is_named(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    with_league(folder)
    kept("random", 1.0)
    with PEOPLE.open("a") as file:
        file.write("{}\n")
    with pytest.raises(CheckpointError, match=r"line 2 of runs/people\.jsonl is no play"):
        league(str(folder.path))
    found = answered(page_of(parent=runs), "league", run="one")
    assert found["leagues"] == []
    assert "line 2 of runs/people.jsonl" in found["problem"]


def test_a_run_without_opponents_has_none(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    nothing = {"leagues": [], "problem": None}
    assert answered(page_of(parent=runs), "league", run="one") == nothing
    state = {"trainer": {"step": 4}, "arenas": {"nim": {"matchmaker": {}}}}
    write_checkpoint(folder.checkpoints, 4, lambda _: state, keep=1)
    assert answered(page_of(parent=runs), "league", run="one")["leagues"] == []
    with pytest.raises(CheckpointError, match=r"has no league.*--play.opponents self=0.5"):
        league(str(folder.path))
