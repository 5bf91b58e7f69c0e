"""``check_arena``: the bundled arenas pass, and it finds what users get wrong."""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

from arenas.nim import Nim
from legos.arena.arena import Arena, GameArena
from legos.arena.table import Table
from legos.cli.app import run
from legos.data.episode import Task
from legos.errors import ArenaError
from legos.testing import Finding, ScriptedClient, check_arena


def found(arena: Arena, name: str, *, plays: int = 12) -> Finding:
    return next(each for each in check_arena(arena, plays=plays) if each.name == name)


def talk(**methods: object) -> Arena:
    """A debate of two roles that any method may be replaced in."""
    return type("Talk", (Talk,), methods)(ScriptedClient([]))


class Talk(Arena):
    roles = ("ann", "bob")

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for number in range(4):
            yield Task(id=str(number), data=rng.random())

    async def play(self, t: Table) -> Mapping[str, float]:
        said = await t.ask("ann", "Say something.")
        heard = await t.ask("bob", f"Ann says: {said.answer}")
        return {"ann": float(len(heard.answer)), "bob": t.rng.random()}


@pytest.mark.parametrize("name", ["nim", "kuhn", "tinyhanabi", "goofspiel"])
def test_the_bundled_arenas_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["arenas", "check", name, "--plays", "8"]) == 0
    out = capsys.readouterr().out
    assert "FAILED" not in out
    assert "optimal player" in out


def test_a_debate_passes_and_says_who_reads_whom() -> None:
    findings = check_arena(talk(), plays=12)
    assert {each.name for each in findings if each.passed is False} == set()
    assert found(talk(), "secrets").text == "bob reads the answers of ann"
    assert "bob 0." in found(talk(), "idle player").text


def test_tasks_that_differ_from_call_to_call_are_found() -> None:
    count = itertools.count()
    arena = talk(tasks=lambda self, rng: [Task(id=str(next(count)))])
    assert found(arena, "tasks").passed is False


def test_a_play_that_depends_on_others_is_found() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        await t.ask_all({"ann": "?", "bob": "?"})
        return {"ann": random.random(), "bob": 0.0}  # not from t.rng

    finding = found(talk(play=play), "repeatable")
    assert finding.passed is False
    assert "t.rng" in finding.text


def test_a_text_of_another_play_is_found() -> None:
    heard: list[str] = []

    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        heard.append((await t.ask("ann", "Say something.")).answer)
        await t.ask("bob", f"Somebody says: {heard[0]}")
        return {"ann": 0.0, "bob": 0.0}

    finding = found(talk(play=play), "secrets")
    assert finding.passed is False
    assert "in another play" in finding.text


def test_a_role_that_is_never_asked_is_found() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        await t.ask("ann", "?")
        return {"ann": 0.0, "bob": 0.0}

    finding = found(talk(play=play), "roles")
    assert finding.passed is False
    assert "bob" in finding.text


def test_plays_that_fail_end_the_checks() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        raise KeyError("a defect")

    findings = check_arena(talk(play=play), plays=3)
    assert [(each.name, each.passed) for each in findings][1:] == [("random player", False)]
    assert "a defect" in findings[-1].text


def test_rewards_that_break_the_rules_are_an_error() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        return {"ann": 1.0}

    with pytest.raises(ArenaError, match="none for 'bob'"):
        check_arena(talk(play=play), plays=3)


def test_a_wrong_reference_is_found() -> None:
    class Wrong(Nim):
        def reference(self) -> Mapping[str, float]:
            return {"value": 0.1}

    finding = found(GameArena(Wrong(), ScriptedClient([])), "reference")
    assert finding.passed is False
    assert "value is 0.1, computed 0.5238" in finding.text


def test_a_view_that_hides_what_optimal_play_needs_is_no_excuse() -> None:
    """A prompt without the view leaves the optimal player without its position."""

    class Hidden(Nim):
        def prompt(self, state: object, role: str) -> str:
            return "Your move?"

        def starts(self) -> Sequence[tuple[tuple[int, int], float]]:
            return [((3, 0), 1.0)]

    with pytest.raises(ArenaError, match="is prompt\\(\\) changed"):
        check_arena(GameArena(Hidden(), ScriptedClient([])), plays=3)


def test_no_plays_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["arenas", "check", "nim", "--plays", "0"]) == 2
    assert "plays is 0; expected at least 1" in capsys.readouterr().err


def test_seats_that_programs_play_are_named_as_not_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        async with t.endpoint("ann"):
            return {"ann": 1.0, "bob": 0.0}

    findings = check_arena(talk(play=play), plays=3)
    assert [(each.name, each.passed) for each in findings] == [("tasks", True), ("plays", None)]
    assert "a program plays a seat over HTTP" in findings[-1].text
    assert run(["arenas", "check", "programs", "--plays", "3"]) == 0
    assert "not checked (rewards, repeatable, roles" in capsys.readouterr().out
