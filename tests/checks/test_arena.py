"""``check_arena``: the bundled arenas pass, and it finds what users get wrong."""

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from talks import found, talk

from legos import Arena, Forfeit, Seat, Table, Task
from legos.checks import Finding, check_arena
from legos.cli.app import run
from legos.errors import ArenaError
from legos.fakes import ScriptedClient


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


def test_a_notebook_whose_event_loop_runs_can_check_an_arena() -> None:
    async def cell() -> list[Finding]:
        return check_arena(talk(), plays=12)

    assert all(each.passed is not False for each in asyncio.run(cell()))


def test_an_arena_that_spawns_itself_passes() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        if t.task.id == "child":
            await t.ask_all({"ann": "?", "bob": "?"})
            return {"ann": 1.0, "bob": 0.0}
        [child] = await t.spawn(self, Task(id="child"))
        return child.rewards

    findings = check_arena(talk(play=play), plays=3)
    assert {each.name for each in findings if each.passed is False} == set()


def test_an_arena_that_keeps_another_to_spawn_passes() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        await t.ask("ann", "?")
        [child] = await t.spawn(vars(self)["inner"], Task(id="child"))
        return child.rewards

    arena, inner = talk(play=play), talk()
    vars(arena)["inner"] = inner
    before = inner.matchmaker
    findings = check_arena(arena, plays=3)
    assert {each.name for each in findings if each.passed is False} == set()
    assert inner.matchmaker is before


def test_tasks_that_differ_from_call_to_call_are_found() -> None:
    count = itertools.count()
    arena = talk(tasks=lambda self, rng: [Task(id=str(next(count)))])
    assert found(arena, "tasks").passed is False


class Question:
    """Data of a task that neither compares nor writes its content."""

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize("text", ["always", "new"])
def test_tasks_whose_data_are_objects_are_compared_by_their_content(text: str) -> None:
    count = itertools.count()

    def tasks(self: Arena, rng: random.Random) -> Iterable[Task]:
        yield Task(id="a", data=Question(text if text == "always" else f"{next(count)}"))

    assert found(talk(tasks=tasks), "tasks").passed is (text == "always")


def test_an_arena_without_held_out_tasks_has_as_many_plays_as_it_says() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        await t.ask_all({"ann": "?", "bob": "?"})
        return {"ann": 0.0, "bob": 0.0}

    arena = talk(play=play, held_out=lambda self, rng: [])
    assert "2 turns each" in found(arena, "random player").text


def test_a_play_that_depends_on_others_is_found() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        await t.ask_all({"ann": "?", "bob": "?"})
        return {"ann": random.random(), "bob": 0.0}  # not from t.rng

    finding = found(talk(play=play), "repeatable")
    assert finding.passed is False
    assert "t.rng" in finding.text


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


@pytest.mark.parametrize("method", ["held_out", "reference", "private"])
def test_a_method_of_the_arena_that_fails_is_named(method: str) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a defect")

    with pytest.raises(ArenaError, match=rf"(?s){method}\(\) of arena 'talk' failed:.*a defect"):
        check_arena(talk(**{method: broken}), plays=3)


def test_rewards_that_break_the_rules_are_an_error() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        return {"ann": 1.0}

    with pytest.raises(ArenaError, match="rewards for 'ann'; expected a reward for each role"):
        check_arena(talk(play=play), plays=3)


def test_no_plays_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["arenas", "check", "nim", "--plays", "0"]) == 2
    assert "Must be >= 1" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("utility", "payoffs", "passed"),
    [
        ("zero_sum", (1.0, -1.0), True),
        ("zero_sum", (1.0, -3.0), False),
        ("identical", (2.0, 2.0), True),
        ("identical", (1.0, -1.0), False),
        (None, (1.0, -3.0), None),
    ],
)
def test_sums_of_rewards_are_checked_where_they_are_declared(
    utility: str | None, payoffs: tuple[float, float], passed: bool | None
) -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        await t.ask_all({"ann": "?", "bob": "?"})
        if t.task.id == "0":
            raise Forfeit("ann")  # whose reward is -1, and 0 for the other
        return dict(zip(("ann", "bob"), payoffs, strict=True))

    finding = found(talk(play=play, utility=utility), "reward sums")
    assert finding.passed is passed
    if utility is None:
        assert finding.text == "the rewards sum to -2 in all of 9 plays"
    elif not passed:
        assert f"utility is {utility!r}" in finding.text
        assert "{'ann': 1.0" in finding.text


class Colour(Arena):
    """Name a colour; the oracle knows all of them but one."""

    references: Mapping[str, float] = {"oracle": 1.0, "idle": 0.0}
    sky = "blue"  # what the oracle takes for the colour of the sky
    promised = 1.0

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for thing, colour in (("sky", "blue"), ("grass", "green"), ("snow", "white")):
            yield Task(id=thing, data=colour)

    def oracle(
        self, role: str, prompt: str, task: Task, rng: random.Random
    ) -> tuple[str, float] | None:
        return self.sky if task.id == "sky" else task.data, self.promised

    async def play(self, t: Table) -> Mapping[str, float]:
        return {"player": float((await t.ask("player", t.task.id)).answer == t.task.data)}


def coloured(**attributes: object) -> Finding:
    return found(type("Coloured", (Colour,), attributes)(ScriptedClient([])), "oracle")


def test_an_oracle_earns_what_it_says() -> None:
    finding = coloured()
    assert finding.passed is True
    assert finding.text == "mean reward player 1: what oracle() says, in 12 seats"
    assert found(Colour(ScriptedClient([])), "idle player").passed is True


def test_one_wrong_answer_of_an_oracle_is_found() -> None:
    finding = coloured(sky="grey")
    assert finding.passed is False
    assert (
        "4 of 12 seats earn less than oracle() says: player in task 'sky' earns 0 instead of 1"
        in (finding.text)
    )
    assert "mean reward player 0.667" in finding.text


def test_the_reference_number_of_an_oracle_is_compared() -> None:
    assert "oracle is 2, but player gets 1" in coloured(references={"oracle": 2.0}).text
    assert coloured(references={"oracle": 2.0}).passed is False
    assert coloured(references={}).passed is True
    assert coloured(promised=1.1).passed is False


def test_an_oracle_that_raises_or_says_nothing_is_found() -> None:
    def broken(self: Arena, *_: object) -> tuple[str, float]:
        raise KeyError("a defect")

    finding = coloured(oracle=broken)
    assert (finding.passed, "a defect" in finding.text) == (False, True)
    finding = coloured(oracle=lambda *_: None)
    assert (finding.passed, "answers no seat's questions" in finding.text) == (False, True)


@pytest.mark.parametrize(("declared", "passed"), [(0.5, False), (0.0, True)])
def test_what_a_silent_player_earns_is_compared(declared: float, passed: bool) -> None:
    finding = found(talk(references={"idle_ann": declared}), "idle player")
    assert finding.passed is passed
    assert ("idle_ann is 0.5, but ann gets 0;" in finding.text) is not passed


def test_a_declared_role_that_is_never_asked_is_found() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        if (said := (await t.ask("ann", "?")).answer) != "":
            await t.ask("bob", said)
        return {"ann": 0.0, "bob": 0.0}

    finding = found(talk(play=play, references={"idle_bob": 0.0}), "idle player")
    assert finding.passed is False
    assert "bob is never asked" in finding.text


@pytest.mark.parametrize(
    ("fixed", "passed"), [((), True), (("bob",), None), (("ann", "bob"), False)]
)
def test_roles_that_are_never_trained_are_named(fixed: Sequence[str], passed: bool | None) -> None:
    def seats(self: Arena, task: Task) -> Mapping[str, Seat]:
        every = Arena.seats(self, task)
        return {role: replace(seat, trainable=role not in fixed) for role, seat in every.items()}

    finding = found(talk(seats=seats), "training")
    assert finding.passed is passed
    assert all(role in finding.text for role in fixed)
