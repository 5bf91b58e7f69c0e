"""The opponents of a run, from its newest checkpoint."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_leagues import with_league
from made_runs import add_lines, answered, made_run, page_of, step_line
from made_snapshots import adapter

from legos.apps.league import league
from legos.cli.process import main
from legos.errors import CheckpointError
from legos.league.payoffs import PayoffTable
from legos.records.episode import Episode, Task
from legos.records.names import frozen_name
from legos.run.checkpoint import write_checkpoint
from legos.run.people import PEOPLE, PersonalPlay

RATED = {"elo": 7.0, "elo_low": 1.0, "elo_high": 12.0}


def test_members_are_rated_and_their_scores_shown(runs: Path) -> None:
    folder = made_run(runs / "one", steps=3)
    with_league(folder)
    add_lines(folder.metrics, [step_line(4, **{f"league/{n}": v for n, v in RATED.items()})])
    add_lines(folder.metrics, [step_line(5, **{"league/plays_past": 12.0})])
    [found] = answered(page_of(parent=runs), "league", run="one")["leagues"]
    assert next(iter(found["ratings"])) == "policy@2"
    assert found["ratings"]["random"]["rating"] == 0.0
    assert found["ratings"]["policy@2"]["low"] > 0
    counts = {"plays": 20.0, "wins": 15.0, "draws": 0.0, "losses": 5.0, "forfeits": 2.0}
    cell = {"score": 0.75, "reward": 0.5, **counts}
    assert found["matrix"]["policy@2"]["random"] == {**cell, "roles": {"first": cell}}
    assert found["ratings"]["policy@2"]["forfeits"] == 4.0
    assert found["matrix"]["random"]["policy@2"]["roles"]["second"]["losses"] == 15.0
    steps = {who: (one["step"], one["until"]) for who, one in found["ratings"].items()}
    assert steps == {"policy@2": (2, 4), "policy@0": (0, 2), "random": (None, None)}
    assert found["cycle"] == []
    assert "policy@0" not in found["matrix"]["random"]
    assert found["alone"] == ["policy@4"]
    assert found["elo"] == [[4, 7.0, 1.0, 12.0]]
    assert found["met"] == {"past": {"plays": [[5, 12.0]], "score": []}}
    assert league(str(folder.path))["nim"]["ratings"] == found["ratings"]


def test_a_checkpoint_is_read_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_run(runs / "one", steps=3)
    with_league(folder)
    found = league(str(folder.path))["nim"]["ratings"]
    with monkeypatch.context() as patch:
        for name in ("read_state", "PayoffTable", "deepcopy"):
            patch.setattr(f"legos.run.leagues.{name}", None)
        assert league(str(folder.path))["nim"]["ratings"] == found
    with_league(folder, size=2)  # a new checkpoint of the same step
    assert league(str(folder.path))["nim"]["ratings"] != found


def test_the_only_league_of_a_mix_has_its_course_too(runs: Path) -> None:
    shares = {"self": 0.75, "past": 0.25}
    mix = {"kuhn": {"share": 0.5}, "nim": {"share": 0.5, "opponents": shares}}
    folder = made_run(runs / "one", steps=3, mix=mix)
    with_league(folder)
    add_lines(folder.metrics, [step_line(4, **{f"league/nim/{n}": v for n, v in RATED.items()})])
    [found] = answered(page_of(parent=runs), "league", run="one")["leagues"]
    assert (found["arena"], found["elo"]) == ("nim", [[4, 7.0, 1.0, 12.0]])
    assert found["shares"] == shares


def test_a_league_of_a_file_is_named_after_its_class(runs: Path) -> None:
    shares = {"self": 0.5, "past": 0.5}
    folder = made_run(runs / "one", arena="race.py:Race", play__opponents=shares)
    with_league(folder, arena="race")
    [found] = answered(page_of(parent=runs), "league", run="one")["leagues"]
    assert (found["arena"], found["shares"]) == ("race", shares)


@pytest.mark.parametrize("mixed", [False, True])
def test_the_guards_have_their_newest_values_and_limits(mixed: bool, runs: Path) -> None:
    mix = {"kuhn": {"share": 0.5}, "nim": {"share": 0.5}} if mixed else {}
    folder = made_run(runs / "one", steps=3, mix=mix, league__collapse_elo=80.0)
    with_league(folder)
    before = {"fall": 0.0, "forgotten": 0.0, "collusion": 0.0, "draw_share": 0.1}
    judged = {"fall": 90.0, "forgotten": 1.0, "collusion": 0.0, "entropy": 0.5, "length": 2.0}
    prefix = "league/nim/" if mixed else "league/"
    for step, values in ((4, before), (6, judged)):
        named = {f"{prefix}{name}": value for name, value in values.items()}
        add_lines(folder.metrics, [step_line(step, **named)])
    add_lines(folder.metrics, [step_line(7, **{f"{prefix}plays_past": 12.0})])
    found = league(str(folder.path))["nim"]["guards"]
    rows = {name: (row["value"], row["limit"], row["alarm"]) for name, row in found.items()}
    assert rows == {
        "fall": (90.0, 80.0, "error"),
        "forgotten": (1.0, 1.0, "warning"),
        "draw_share": (None, 0.95, None),
        "seat_gap": (None, 0.8, None),
        "length": (2.0, 2.0, "warning"),
        "entropy": (0.5, 0.1, None),
        "collusion": (0.0, 0.5, None),
    }
    assert {row["step"] for row in found.values()} == {6}
    assert [name for name, row in found.items() if row["below"]] == ["entropy"]
    shown = answered(page_of(parent=runs), "league", run="one")
    assert [each["guards"] for each in shown["leagues"]] == [found]
    assert shown["plays_kept"] == 0.05


def test_the_command_shows_the_guards_and_whom_the_policy_has_forgotten(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_run(runs / "one", steps=3)
    table = PayoffTable()
    for member, theirs, won in (("policy@0", "random", 80), ("policy@2", "random", 30)):
        account = table.account(member, theirs, ["first"], ["second"])
        for play in range(100):
            account.count(*((1.0, -1.0) if play < won else (-1.0, 1.0)))
    with_league(folder, table=table)
    assert main(["league", str(folder.path)]) == 0
    assert "no snapshot has been judged yet" in capsys.readouterr().out
    judged = {"league/fall": 150.0, "league/forgotten": 1.0, "league/rival/forgotten": 0.0}
    add_lines(folder.metrics, [step_line(4, **judged)])
    assert main(["league", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"guard, step 4 +value +wrong if +alarm", shown)
    assert re.search(r"\nfall +150 +at least 100 +error *\n", shown)
    assert re.search(r"\nforgotten +1 +at least 1 +warning: random *\n", shown)
    assert re.search(r"\nlength +too few plays +at least 2 +none *\n", shown)
    assert re.search(r"\nrival/forgotten +0 +at least 1 +none *\n", shown)
    assert main(["league", str(folder.path), "--json"]) == 0
    guards = json.loads(capsys.readouterr().out)["nim"]["guards"]
    assert guards["forgotten"]["members"] == ["random"]


def test_plays_of_a_member_in_several_seats_are_whole(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, table = made_run(runs / "one", steps=3), PayoffTable()
    account = table.account("policy@2", "policy@0", ["a"], ["b", "c", "d"])
    for _ in range(1000):
        account.count(1.0, -1.0)
    account.count(1.0, -1.0, ["b"])  # of three seats, one forfeits
    with_league(folder, table=table)
    found = league(str(folder.path))["nim"]
    assert {one["plays"] for one in found["ratings"].values()} == {1001.0}
    assert found["matrix"]["policy@0"]["policy@2"]["losses"] == 1001.0
    assert main(["league", str(folder.path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "policy@" in line]
    assert [row[-2:] for row in rows[:2]] == [["1001", "0"], ["1001", "0.3"]]


def test_a_cycle_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = PayoffTable()
    for mine, theirs in (("policy@2", "policy@0"), ("policy@0", "random"), ("random", "policy@2")):
        for reward in (1.0,) * 40 + (-1.0,) * 10:
            table.account(mine, theirs, ["first"], ["second"]).count(reward, -reward)
    folder = made_run(runs / "one", steps=3)
    with_league(folder, table=table)
    found = league(str(folder.path))["nim"]["cycle"]
    at = found.index("policy@2")
    assert found[at:] + found[:at] == ["policy@2", "policy@0", "random"]
    assert main(["league", str(folder.path)]) == 0
    assert f"each beats the next: {', '.join(found)}" in capsys.readouterr().out


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
    assert [cells["policy@2"][name] for name in ("score", "reward", "plays")] == [0.75, 0.5, 8.0]
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
