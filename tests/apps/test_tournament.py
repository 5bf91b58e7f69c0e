"""``legos tournament`` and ``legos eval --against``: who meets whom, and what is refused."""

import io
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import HttpAnswer, ScriptedServer, serving
from short_runs import FEW, NIM, Told

from legos.apps.members import lasting_names
from legos.cli.process import main
from legos.league.ratings import cyclic_share

FAILS = '''
from legos import Arena, Task


class Fails(Arena):
    """The second seat's play fails in the seats of bots."""

    roles = ("first", "second")
    restrict_choices = True

    def tasks(self, rng):
        yield Task(id="only")

    async def play(self, t):
        said = await t.ask_all(dict.fromkeys(self.roles, "Your move?"), choices=("a", "b"))
        if t.seats["second"].name == "random" or t.seats["first"].name == "random":
            raise OSError("the table broke")
        return {role: float(said[role].move == "a") for role in self.roles}


class Pairs(Fails):
    policies = ("one", "two")
'''

SMALL = """
from legos import Completion
from arenas.kuhn import Kuhn


class Small(Kuhn):
    def payoff(self, state):
        return {role: chips / 2 for role, chips in super().payoff(state).items()}


class Mute:
    async def complete(self, prompt, sampling, *, adapter="policy"):
        return Completion(text="")
"""

BETS = """
from legos import Completion


class Bets:
    async def complete(self, prompt, sampling, *, adapter="policy"):
        return Completion(text=sampling.choices[-1])
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs nim and kuhn, which keep the adapters of steps 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("place")
    keep = ("--loop.checkpoint-every", "1", "--loop.evaluate-every", "0")
    for arena, options in (("nim", NIM), ("kuhn", FEW)):
        out = ("--out", str(folder / "runs" / arena), "--arena", arena)
        rate = ("--training.learning-rate", "0.05", "--steps", "2")
        assert main(["train", *out, *options, *keep, *rate]) == 0
    (folder / "fails.py").write_text(FAILS)
    return folder


@pytest.fixture(autouse=True)
def here(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def test_a_game_is_computed_and_the_optimum_is_the_strongest(told: Told) -> None:
    found = told("tournament", "nim@all", "nim", "random", "optimal", "base")
    members = {"nim@v0", "nim@v1", "nim@v2", "nim", "random", "optimal", "base"}
    assert (found["arena"], found["exact"], found["plays"]) == ("nim", True, 0)
    assert found["ratings"].keys() == found["matrix"].keys() == found["nash"].keys() == members
    assert next(iter(found["ratings"])) == "optimal"
    assert found["ratings"]["random"]["rating"] == 0
    assert found["nash"]["optimal"] == pytest.approx(1.0, abs=1e-3)
    for rated in found["ratings"].values():
        assert rated["low"] == rated["rating"] == rated["high"]
    for mine, row in found["matrix"].items():
        assert row.keys() == members - {mine}
        for theirs, cell in row.items():
            assert cell["reward"] == pytest.approx(-found["matrix"][theirs][mine]["reward"])
            by_role = [cell["roles"][role]["reward"] for role in ("first", "second")]
            assert cell["reward"] == pytest.approx(sum(by_role) / 2)
    cycle = found["cycle"]  # of members that are nearly equal, if there is one
    assert "optimal" not in cycle
    for mine, theirs in pairwise([*cycle, *cycle[:1]]):
        assert found["matrix"][mine][theirs]["reward"] > 0
    newest, same = found["matrix"]["nim"], found["matrix"]["nim@v2"]
    assert newest["random"] == same["random"] != found["matrix"]["nim@v1"]["random"]
    assert newest["nim@v2"]["reward"] == pytest.approx(0.0)
    exact = told("eval", "nim")["vs_random"]  # largest 5: with the settings of the run
    assert newest["random"]["win"] == pytest.approx(exact["win"])


@pytest.mark.slow
def test_plays_agree_with_the_exact_figures_and_repeat(told: Told) -> None:
    members = ("nim", "random", "optimal")
    exact = told("tournament", *members)["matrix"]["nim"]["random"]
    once, again, other = (
        told("tournament", *members, "--plays", "200", "--seed", seed) for seed in "112"
    )
    assert once == again != other
    assert (once["exact"], once["plays"], once["failed"]) == (False, 600, 0)
    played = once["matrix"]["nim"]["random"]
    assert played["plays"] == 200
    assert played["low"] - 0.1 < exact["reward"] < played["high"] + 0.1
    assert once["ratings"]["optimal"]["low"] > once["ratings"]["random"]["high"]
    assert once["ratings"]["nim"]["plays"] == 400


@pytest.mark.slow
def test_opponents_of_training_have_no_say(told: Told, tmp_path: Path) -> None:
    run = str(tmp_path / "league")
    shares = ("self=0.5", "random=0.25", "exploiter=0.25")
    opponents = [word for share in shares for word in ("--play.opponents", share)]
    assert main(["train", "--out", run, *NIM, "--steps", "1", *opponents]) == 0
    found = told("tournament", run, "base", "--plays", "20")
    assert (found["plays"], found["failed"]) == (20, 0)
    assert found["matrix"][run]["base"]["plays"] == 20


def test_a_server_is_a_member_and_plays(told: Told) -> None:
    server = ScriptedServer(
        lambda asked: HttpAnswer({"choices": [{"message": {"content": "p"}}]}),
        models={"data": [{"id": "passive"}]},
    )
    with serving(server) as url:
        members = ("nim", f"{url}/v1", "random", "--arena", "kuhn", "--plays", "8")
        found = told("tournament", *members)
    assert (found["exact"], found["plays"]) == (False, 24)
    cell = found["matrix"][f"{url}/v1"]["random"]
    assert (cell["plays"], cell["forfeits"]) == (8, 0)
    assert {asked.body["model"] for asked in server.asked} == {"passive"}


def test_a_bot_of_ones_own_is_a_member_by_its_name_and_plays(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bots.py").write_text(BETS)
    members = ("bots.py:Bets", "random", "nim@v1", "--arena", "kuhn", "--plays", "8")
    found = told("tournament", *members)
    assert (found["exact"], found["plays"], found["failed"]) == (False, 24, 0)
    assert found["ratings"].keys() == {"bots.py:Bets", "random", "nim@v1"}
    alone = told("tournament", "bots.py:Bets", "random", "--arena", "kuhn")
    assert (alone["exact"], alone["plays"]) == (False, 100)  # nothing but plays shows its policy
    against = told("eval", "kuhn", "--against", "bots.py:Bets", "--loop.evaluation-plays", "8")
    cell = against["against"]["bots.py:Bets"]
    assert (against["exact"], cell["plays"], cell["forfeits"]) == (False, 8, 0)
    assert main(["play", "kuhn", "--seat", "first=bots.py:Bets", "--seat", "second=random"]) == 0
    capsys.readouterr()
    for command in ("tournament --arena kuhn random", "eval kuhn --against"):
        assert main([*command.split(), "bots.py:Lost"]) != 0
        assert "player is 'bots.py:Lost', but bots.py has no 'Lost'" in capsys.readouterr().err


def test_snapshots_are_spread_over_the_steps(told: Told) -> None:
    found = told("tournament", "nim@all", "random", "--snapshots", "2")
    assert found["ratings"].keys() == {"nim@v0", "nim@v2", "random"}
    alone = told("tournament", "nim@all", "random", "--snapshots", "1")
    assert alone["ratings"].keys() == {"nim@v2", "random"}


def test_a_named_arena_has_its_own_settings_and_others_are_named(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    found = told("tournament", "nim", "optimal", "random", "--arena", "kuhn")
    assert (found["arena"], found["unit"]) == ("kuhn", 2.0)
    rows = found["matrix"]
    rewards = [[row[who]["reward"] if who in row else 0.0 for who in rows] for row in rows.values()]
    expected = cyclic_share(0.5 + np.array(rewards) / (2 * 2))  # and not of wins
    assert found["cyclic_share"] == pytest.approx(expected)
    assert "runs/nim was trained on nim, and plays kuhn here" in caplog.text
    alone = told("tournament", "random", "optimal", "--arena", "nim", "--play.options.largest", "4")
    assert alone["matrix"]["optimal"]["random"]["win"] > 0.5


def test_people_get_tables(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["tournament", "nim", "random", "optimal"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nim: exact, without a play"
    assert lines[2].split() == ["member", "rating"]
    assert re.fullmatch(r"1 optimal +\+\d+ *", lines[3])
    assert lines[7].split() == ["mean", "reward", "against", "1", "2", "3"]
    assert lines[8].split()[:3] == ["1", "optimal", "-"]
    assert lines[-2] == "Nash mixture: optimal 1"
    assert re.fullmatch(r"cyclic share: [\d.e-]+", lines[-1])
    assert main(["tournament", "nim", "random", "--plays", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nim: 20 plays, 0 failed, 0 void"
    assert re.search(r"[+-]\d+ to [+-]\d+ +20", lines[3])


def test_a_run_is_evaluated_against_others(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    found = told("eval", "nim", "--against", "random", "--against", "nim@v1")
    assert found["exact"]
    assert found["against"].keys() == {"random", "nim@v1"}
    random = found["against"]["random"]
    assert random["roles"].keys() == {"first", "second"}
    rewards = [role["reward"] for role in random["roles"].values()]
    assert sum(rewards) / 2 == pytest.approx(random["reward"]) == random["low"] == random["high"]
    assert random["win"] == pytest.approx(told("eval", "nim")["vs_random"]["win"])
    swapped = told("eval", "nim", "--adapter", "nim@v1", "--against", "nim")
    assert swapped["against"]["nim"]["reward"] == pytest.approx(
        -found["against"]["nim@v1"]["reward"]
    )
    played = told("eval", "nim", "--against", "random", "--loop.evaluation-plays", "50")
    assert (played["exact"], played["plays"]) == (False, 50)
    assert played["against"]["random"]["low"] < played["against"]["random"]["high"]
    assert main(["eval", "nim", "--against", "random", "--loop.evaluation-plays", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["against", "win", "draw", "loss", "reward", "95", "%", "plays",
                                "forfeits"]  # fmt: skip
    assert [line.partition("  ")[0] for line in lines[3:]] == [
        "random",
        "random, as first",
        "random, as second",
    ]


def test_people_are_members_by_the_plays_that_were_kept(
    told: Told,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = Path("runs").absolute()
    monkeypatch.chdir(tmp_path)
    run = str(runs / "nim")
    largest = tuple(NIM[NIM.index("--play.options.largest") :][:2])
    mine = ["play", "nim", *largest, "--name", "ada"]
    for opponent in ("optimal", f"{run}@v1"):
        monkeypatch.setattr("sys.stdin", io.StringIO("1\n" * 60))
        assert main([*mine, "--against", opponent, "--plays", "4"]) == 0
    capsys.readouterr()
    found = told("tournament", f"{run}@v1", "random", "optimal", "person:ada")
    assert (found["exact"], found["plays"], found["nash"]) == (False, 300 + 8, {})
    row = found["matrix"]["person:ada"]
    assert {who: cell["plays"] for who, cell in row.items()} == {f"{run}@v1": 4, "optimal": 4}
    assert row["optimal"]["loss"] == found["matrix"]["optimal"]["person:ada"]["win"]
    assert found["ratings"]["person:ada"]["plays"] == 8
    against = told("eval", run, "--adapter", f"{run}@v1", "--against", "person:ada")["against"]
    assert against["person:ada"]["roles"].keys() == {"second"}
    for members in ((f"{run}@v2", "person:ada"), ("random", "person:ada", "--arena", "nim")):
        assert main(["tournament", *members]) == 2  # other weights, other options
        message = capsys.readouterr().err
        assert "person:ada has played none of" in message
        assert "play: legos play nim --against" in message
    assert (
        main(["play", "nim", "--seat", "first=random", "--seat", "second=random", *mine[-2:]]) == 2
    )
    assert "--name is 'ada' but nobody is me" in capsys.readouterr().err
    (tmp_path / "runs/people.jsonl").write_text("{}\n")
    assert main(["tournament", run, "person:ada"]) == 2
    assert "line 1 of runs/people.jsonl is no play of a person" in capsys.readouterr().err


def test_plays_against_base_count_where_base_is_a_member() -> None:
    assert lasting_names(["random"], {}, "builtin") == {"random": "random"}
    assert lasting_names(["base"], {}, "builtin") == {"base": "base of builtin"}


def test_a_person_at_a_table_of_three_is_rated_in_any_order(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n" * 30))
    table = ("--play.options.seats", "3", "--play.options.cards", "2")
    asked = ("--against", "random", "--name", "ada", "--plays", "4")
    assert main(["play", "goofspiel", *table, *asked]) == 0
    for members in (("random", "person:ada"), ("person:ada", "random")):
        found = told("tournament", *members, "--arena", "goofspiel", *table)
        assert (found["plays"], found["nash"]) == (4, {})  # a side is one seat: that of the person
        assert found["matrix"]["person:ada"]["random"]["plays"] == 4


@pytest.mark.parametrize("others", [["small.py:Mute"], ["small.py:Mute", "random"]])
def test_a_forfeit_that_costs_more_than_a_loss_counts_by_its_gain(
    others: list[str], told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(SMALL)
    monkeypatch.setattr("sys.stdin", io.StringIO("p\n" * 3))
    asked = ("--against", "small.py:Mute", "--name", "ada")
    assert main(["play", "small.py:Small", *asked]) == 0
    found = told("tournament", *others, "person:ada", "--arena", "small.py:Small")
    assert found["unit"] == 1.0  # a forfeit of -1.5 to 0 is a gain of 0.75
    assert found["matrix"]["small.py:Mute"]["person:ada"]["reward"] == -1.5
    assert [*found["ratings"]][-1] == "small.py:Mute"


def test_the_temperature_of_plays_is_given(told: Told) -> None:
    def plays(*options: str) -> dict[str, Any]:
        return told("tournament", "nim", "nim@v1", "--plays", "60", *options)

    assert plays() == plays() != plays("--temperature", "0")
    assert not told("tournament", "nim", "random", "--temperature", "0.5")["exact"]


def test_failed_plays_are_counted_and_members_that_never_met_are_named(
    told: Told, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    arena = ("--arena", "fails.py:Fails", "--plays", "4")
    found = told("tournament", "base", "nim", *arena)
    assert (found["plays"], found["failed"]) == (4, 0)
    assert main(["tournament", "base", "nim", "random", *arena]) == 2
    message = capsys.readouterr().err
    assert "base and random never met, so they cannot be compared: no play of theirs end" in message
    assert "8 of 12 plays of arena 'fails' failed" in message
    assert "the table broke" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["random", "optimal"],
            "no run is among random, optimal, whose arena could be played; giv",
        ),
        (["nim"], "a tournament needs two different members and has nim; name another one"),
        (["nim", "nobody"], "nobody holds no run and no adapter"),
        (["nim", "nim@7"], "keeps no adapter of step 7; it has those of steps 0, 1, 2"),
        (["random", "nobody"], "nobody holds no run and no adapter"),
        (["nim", "nobody@all"], "nobody holds no run"),
        (["nim@all", "random", "--snapshots", "0"], "Must be >= 1"),
        (["nim", "random", "--plays", "0"], "evaluation_plays is 0"),
        (["nim", "random", "--play.options.largst", "4"], "takes no option 'largst'"),
        (["base", "random", "--arena", "sums"], "arena 'sums' cannot meet: it seats one player"),
        (["base", "random", "--arena", "nmi"], "no arena is called 'nmi'; did you mean 'nim'?"),
        (["nim", "random", "--arena", "fails.py:Pairs"], "runs/nim has trained no policy 'two'"),
        (["optimal", "random", "--arena", "fails.py:Fails"], "no optimal player of arena 'fails'"),
        (["nim", "http://"], "base_url 'http:"),
    ],
)
def test_what_cannot_meet_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tournament", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_cannot_be_evaluated_against_others_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text("[mix]\nnim = 0.5\nkuhn = 0.5\n")
    for run, message in (
        ("nobody", "nobody holds no run and no adapter"),
        (str(tmp_path), "has several arenas, nim, kuhn; name one: legos tournament"),
        ("nim@7", "keeps no adapter of step 7"),
    ):
        assert main(["eval", run, "--against", "random"]) == 2
        assert message in capsys.readouterr().err


def test_a_member_of_another_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tournament", "random", "nim@v1", "--model", "other/model"]
    for arena in ([], ["--arena", "nim"], ["--arena", "kuhn"]):
        assert main([*arguments, *arena]) == 2
        message = capsys.readouterr().err
        assert "adapter 'nim@v1' (version 1) was trained on model 'builtin' and cannot be put" in (
            message
        )
        assert "on 'other/model'; give --model builtin" in message


def test_opponents_of_another_arena_or_model_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = ("--arena", "kuhn", *FEW, "--steps", "1", "--play.opponents", "self=0.5")
    assert main(["train", *run, "--play.opponents", "nim@1=0.5", "--dry-run"]) == 0
    assert "nim@1 was trained on nim, and plays kuhn here" in caplog.text
    other = tmp_path / "other"
    shutil.copytree("runs/nim/adapters/v1", other)
    settings = other / "adapter_config.json"
    settings.write_text(settings.read_text().replace('"builtin"', '"other/model"'))
    out = ("--out", str(tmp_path / "run"))
    assert main(["train", *run, *out, "--play.opponents", f"{other}=0.5"]) == 2
    message = capsys.readouterr().err
    assert "was trained on model 'other/model' and cannot be put on 'builtin'" in message
