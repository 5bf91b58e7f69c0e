"""Opponents from settings: who is seated, and what is refused by name before anything runs."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from legos import Trainer, load_model, training_loop
from legos.arena.cursor import plays_from
from legos.cli.process import main
from legos.config.league import LeagueConfig
from legos.config.schema import PlayConfig, RunConfig
from legos.errors import ArenaError, CheckpointError, ConfigError
from legos.fakes import ScriptedClient
from legos.league.matchmaker import LeagueSeats
from legos.loop.evaluation import ArenaEvaluation
from legos.records.episode import Episode
from legos.records.group import Group
from legos.weights.folder import write_adapter
from legos.wiring.arena import make_arena, policies_of
from legos.wiring.rivals import rivals_of

HALF = {"self": 0.5, "past": 0.5}
OWN = """
from legos.protocols import Matchmaker

class Own(Matchmaker):
    def seats(self, arena, task, seed):
        return arena.seats(task)

class Empty:
    pass

class Most:
    seats = record = state = restore = seating = None

class Needs:
    def __init__(self, size):
        pass
"""
BOTS = """
from legos import Completion

class Greedy:
    async def complete(self, prompt, sampling, *, adapter="policy"):
        return Completion(text=sampling.choices[-1])

class Blocking:
    def complete(self, prompt, sampling, *, adapter="policy"):
        return Completion(text=sampling.choices[-1])

class Needs:
    def __init__(self, size):
        pass

greedy, number = Greedy(), 3
"""
TWO = """
from legos import Arena

class Two(Arena):
    roles = policies = ("a", "b")
"""


def made(name: str = "kuhn", **play: Any) -> Any:
    return make_arena(name, ScriptedClient([]), play=PlayConfig.model_validate(play))


@pytest.mark.parametrize(
    ("arena", "play", "message"),
    [
        ("sums", {"opponents": HALF}, r"self, past but arena 'sums' has one role; leave"),
        (
            "kuhn",
            {"opponents": {"exploiters": 1}},
            r"names exploiters, .* give it a share too",
        ),
        ("negotiation", {"opponents": {"optimal": 1}}, r"no optimal player of arena 'negotiation'"),
    ],
)
def test_what_does_not_fit_an_arena_is_refused(arena: str, play: Any, message: str) -> None:
    with pytest.raises((ArenaError, ConfigError), match=message):
        made(arena, **play)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["self=0.4", "past=0.4"],
            r"play\.opponents: the shares among opponents add up to 0\.8: ",
        ),
        (
            ["self=1.5", "past=-0.5"],
            r"the share of 'self' among opponents is 1\.5; expected 0 to 1",
        ),
        (["self"], r"--play\.opponents is 'self'; expected a name and its share"),
        (["self=0.5", "self=0.5"], r"--play\.opponents names 'self' twice"),
        (["self=0.5", "pats=0.5"], r"names 'pats', which is no opponent: .*did you mean 'past'\?"),
        (
            ["self=0.5", "person:ada=0.5"],
            r"names 'person:ada', but nobody .* legos play kuhn --against RUN --name ada",
        ),
        (["self=0.5", "duel-7@3=0.5"], r"'duel-7@3', which .*`legos runs` lists .*did .* 'duel-1'"),
    ],
)
def test_bad_shares_and_names_end_before_a_model_is_loaded(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "duel-1").mkdir(parents=True)
    (tmp_path / "runs" / "duel-1" / "config.toml").touch()
    options = [each for text in given for each in ("--play.opponents", text)]
    assert main(["train", "--arena", "kuhn", *options]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "loading" not in said
    assert re.search(message, said), said


def test_shares_at_the_end_need_those_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"opponents_end names random but play\.opponents is emp"):
        RunConfig.model_validate({"play": {"opponents_end": {"random": 1.0}}})


def test_a_matchmaker_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert type(made(matchmaker=f"{file}:Own").matchmaker).__name__ == "Own"
    for name, message in {
        "Empty": r"whose class has no 'seats'; make it a subclass of legos\.Matchmaker",
        "Most": r"whose class has no 'evaluation'; make it a subclass of legos\.Matchmaker",
        "Needs": r"cannot be made: TypeError.*'size'",
        "Lost": r"has no 'Lost'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            made(matchmaker=f"{file}:{name}")
    with pytest.raises(ConfigError, match=r"play\.matchmaker is 'Own'; expected FILE\.py:Class"):
        made(matchmaker="Own")
    with pytest.raises(ValueError, match=r"the matchmaker decides who meets whom: leave one"):
        RunConfig.model_validate({"play": {"matchmaker": "a.py:B", "opponents": HALF}})


@pytest.mark.parametrize("name", ["Greedy", "greedy"])
def test_a_bot_of_ones_own_is_an_opponent(name: str, tmp_path: Path) -> None:
    file = tmp_path / "bots.py"
    file.write_text(BOTS)
    who = f"{file}:{name}"
    arena = made(opponents={who: 1.0})
    [(task, seed)] = plays_from(arena, 0, 1)
    [rival] = [seat for seat in arena.seated(task, seed).values() if not seat.trainable]
    assert rival.name == who
    assert type(rival.client).__name__ == "Greedy"
    config = {"play": {"opponents": {who: 1.0}}, "arena": "kuhn"}
    assert rivals_of(RunConfig.model_validate(config)) == 8 + 2  # it takes no slot


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bots.py:Lost", r"player is 'bots\.py:Lost', but bots\.py has no 'Lost'"),
        ("bots.py", r"player is 'bots\.py'; expected FILE\.py:Class"),
        ("lost.py:Bot", r"there is no file lost\.py in .*start from where it is, or move it"),
        ("bots.py:Needs", r"cannot be made: TypeError.*'size'"),
        ("bots.py:number", r"player 'bots\.py:number' is 3, an int, .* no `async def complete"),
        ("bots.py:Blocking", r"'bots\.py:Blocking' is <.*a Blocking, .* no `async def complete"),
    ],
)
def test_what_is_no_bot_is_refused_before_anything_runs(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bots.py").write_text(BOTS)
    with pytest.raises((ArenaError, ConfigError), match=message):
        made(opponents={"self": 0.5, name: 0.5})


@pytest.mark.slow
def test_a_script_loads_the_adapters_that_opponents_name(tmp_path: Path) -> None:
    place, shares = tmp_path / "v3", {"self": 0.4, "past": 0.2}
    place.mkdir()
    with closing(Trainer(model=load_model("builtin"))) as trainer:

        def arena(other: str) -> Any:
            play = PlayConfig(opponents={**shares, other: 0.4}, tasks_per_step=16)
            return make_arena("kuhn", trainer.client(), play=play)

        [own] = trainer.adapters
        write_adapter(own, place)
        trainer.load_adapter(place, name="old")
        plays: list[Episode] = []

        async def after_step(metrics: object, groups: Sequence[Group]) -> None:
            plays.extend(episode for group in groups for episode in group.episodes)

        for step, named in ((1, f"{place}"), (2, "old")):
            made = arena(named)
            asyncio.run(training_loop(made, trainer, step, after_step=after_step, progress=False))
        assert {each.error for each in plays} == {None}
        seats = {rollout.seat for each in plays for rollout in each.rollouts}
        assert seats == {"policy", "policy@0", "policy@1", f"{place}", "old"}
        with pytest.raises(CheckpointError, match=r"'nim-1@4', which is neither .*name='old'\)"):
            asyncio.run(training_loop(arena("nim-1@4"), trainer, 3, progress=False))
        again = arena("old")
        again.restore(made.state())
        for snapshot in made.matchmaker.pool.members:
            trainer.engine.drop_adapter(snapshot.live).result()
        with pytest.raises(CheckpointError, match=r"snapshots policy@1 .* not in the engine"):
            asyncio.run(training_loop(again, trainer, 3, progress=False))


def test_several_policies_have_no_exploiter(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(TWO)
    made(f"{file}:Two", opponents=HALF)
    with pytest.raises(ConfigError, match=r"trains a, b, and an exploiter of several policies is"):
        made(f"{file}:Two", opponents={"exploiter": 1.0})


def test_an_exploiter_is_a_second_policy_of_its_arena_alone() -> None:
    config = RunConfig.model_validate(
        {"mix": {"kuhn": {"share": 0.5, "opponents": {"exploiter": 1}}, "nim": {"share": 0.5}}}
    )
    assert policies_of(config.arenas) == ("policy", "exploiter")
    assert made(opponents={"exploiter": 1.0}).policies == ("policy", "exploiter")
    assert made("nim").policies == ("policy",)


def test_the_slots_of_a_server_count_every_opponent(tmp_path: Path) -> None:
    def rivals(play: Any, **league: Any) -> int:
        training = {"staleness_limit": 3}
        settings = {"play": play, "training": training, "league": league, "arena": "kuhn"}
        return rivals_of(RunConfig.model_validate(settings))

    assert rivals({}) == 0
    # Those of the pool; of ten steps one has left, and the next comes before it is dropped.
    assert rivals({"opponents": HALF}) == 8 + 2
    assert rivals({"opponents": HALF}, snapshots=4, snapshot_every=1) == 4 + 5 + 2
    named = {"self": 0.5, "random": 0.1, "base": 0.1, "nim-1@400": 0.2, "exploiter": 0.1}
    assert rivals({"opponents": named}) == 8 + 2 + 1
    file = tmp_path / "two.py"
    file.write_text(TWO)
    settings = {"play": {"opponents": {"self": 0.5, "two-1": 0.5}}, "arena": f"{file}:Two"}
    assert rivals_of(RunConfig.model_validate(settings)) == 2 * (8 + 2) + 2  # of each policy


def test_evaluations_have_the_policy_in_every_seat() -> None:
    arena = made("tictactoe", opponents={"random": 1.0})
    evaluation = ArenaEvaluation(arena, ScriptedClient([]))  # pyrefly: ignore[bad-argument-type]
    assert isinstance(arena.matchmaker, LeagueSeats)
    [(task, seed)] = plays_from(arena, 0, 1)
    assert {seat.name for seat in arena.seated(task, seed).values()} == {"policy", "random"}
    evaluated = evaluation._arena
    assert {seat.name for seat in evaluated.seated(task, seed).values()} == {"policy"}
    assert LeagueConfig().snapshots == arena.matchmaker.pool.size
