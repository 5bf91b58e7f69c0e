"""What goes wrong in a first arena: each message names what came, what was expected, and the cure.

The arenas are played by ``Arena.step`` with a scripted client.
"""

import asyncio
import gc
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import pytest

from legos.arena.arena import Arena, GameArena
from legos.arena.game import Game
from legos.credit import DrGRPOCredit, GRPOCredit
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.group import Group


class Duel(Arena):
    """Two seats, two tasks, two plays of each; attributes are set from outside."""

    roles = ("ann", "bob")
    tasks_per_step = 2
    group_size = 2

    def __init__(self, play: Any = None, *, answer: str = "a", **attributes: Any) -> None:
        client = ScriptedClient(lambda _: answer)
        super().__init__(client, credit_assigner=DrGRPOCredit())
        if play is not None:
            self.play = play
        for name, value in attributes.items():
            setattr(self, name, value)

    def tasks(self, rng: random.Random) -> Any:
        yield Task(id="t0")
        yield Task(id="t1")

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("ann", "?")
        return {"ann": 1.0, "bob": 0.0}


def refusal(arena: Arena) -> str:
    with pytest.raises(ArenaError) as raised:
        asyncio.run(arena.step())
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step())


def returning(rewards: Any) -> Callable[[Table], Awaitable[Any]]:
    async def play(t: Table) -> Any:
        await t.ask("ann", "?")
        return rewards

    return play


EXPECTED = "expected a reward for each role: return {'ann': 0.0, 'bob': 0.0}"


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (None, f"play() of arena 'duel' returned None; is a `return` missing? {EXPECTED}"),
        (1.0, f"play() of arena 'duel' returned 1.0, a float; {EXPECTED}"),
        ([1.0, 0.0], f"play() of arena 'duel' returned [1.0, 0.0], a list; {EXPECTED}"),
        ({"ann": 1.0}, f"returned rewards for 'ann'; {EXPECTED}"),
        ({}, f"returned rewards for no role; {EXPECTED}"),
        (
            {"ann": 1.0, "bob": 0.0, "carl": 0.0},
            f"returned rewards for 'ann', 'bob', 'carl'; {EXPECTED}",
        ),
        (
            {"ann": "1.0", "bob": 0.0},
            "gives 'ann' the reward '1.0', a str; expected a finite number",
        ),
    ],
    ids=repr,
)
def test_rewards(rewards: Any, message: str) -> None:
    told = refusal(Duel(returning(rewards)))
    assert told.endswith("\nin a play of task 't0' of arena 'duel'")
    assert message in told
    assert "legos/arena" not in told  # the person's lines alone


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (None, "gives 'ann' the reward None; expected a finite number"),
        (float("nan"), "gives 'ann' the reward nan, a float; expected a finite number"),
        (np.float32("inf"), "a float32; expected a finite number"),
        (10**400, "an int; expected a finite number"),
    ],
    ids=repr,
)
def test_a_reward_that_is_not_finite_fails_its_play_alone(reward: Any, message: str) -> None:
    """A judge may cause it, in one answer of many; where all plays fail, the step says why."""

    async def play(t: Table) -> Any:
        await t.ask("ann", "?")
        return {"ann": 1.0 if t.task.id == "t0" else reward, "bob": 0.0}

    batch = step(Duel(play))
    assert [episode.failure for episode in batch.episodes] == [None, None, "failed", "failed"]
    error = batch.episodes[2].error or ""
    assert error.startswith("RewardError: play() of arena 'duel' gives 'ann' the reward ")
    assert message in error
    told = refusal(Duel(returning({"ann": reward, "bob": 0.0})))
    assert told.startswith("4 of 4 plays of arena 'duel' failed")
    assert message in told


@pytest.mark.parametrize(
    ("play", "message"),
    [
        (lambda t: {"ann": 1.0}, "play() of arena 'duel' is not async; write async def play(self"),
        (lambda: None, "play() of arena 'duel' takes (); write async def play(self, t)"),
    ],
)
def test_a_play_of_another_form(play: Any, message: str) -> None:
    assert message in refusal(Duel(play))


def test_a_play_that_yields() -> None:
    async def play(t: Table) -> Any:
        yield {"ann": 1.0}

    assert "play() of arena 'duel' yields; return the rewards instead" in refusal(Duel(play))


def asking(*arguments: Any, **options: Any) -> Callable[[Table], Awaitable[Any]]:
    async def play(t: Table) -> Any:
        await t.ask(*arguments, **options)
        return {"ann": 1.0, "bob": 0.0}

    return play


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("ann", 3), {}, "the prompt for 'ann' is 3, an int; expected text"),
        (("ann", ["?"]), {}, "the prompt for 'ann' is ['?'], a list; expected text"),
        (("ana", "?"), {}, "no role 'ana' at this table; did you mean 'ann'?"),
        (
            ("ann", "?"),
            {"choices": [1, 2]},
            "the choices for 'ann' hold 1, an int; expected texts: [str(x) for x in ...]",
        ),
        (("ann", "?"), {"choices": [["a"]]}, "the choices for 'ann' hold ['a'], a list; expected"),
        (("ann", "?"), {"choices": "abc"}, "the choices for 'ann' are 'abc', a str; expected a"),
        (("ann", "?"), {"choices": 3}, "the choices for 'ann' are 3, an int; expected a list of"),
        (("ann", "?"), {"choices": []}, "the choices for 'ann' are an empty list; offer one, or"),
        (("ann", "?"), {"choices": ["a", "b", "a"]}, "hold 'a' twice; expected each once"),
        (("ann", "?"), {"choices": ["a", ""]}, "hold ''; expected texts with something in them"),
        (("ann", "?"), {"choices": ["a", " b"]}, "' b', and blanks around an answer are cut off"),
        (("ann", "?"), {"choices": ["a"], "parse": int}, "ask('ann', ...) has choices and parse"),
    ],
)
def test_questions(arguments: Any, options: Any, message: str) -> None:
    told = refusal(Duel(asking(*arguments, **options)))
    assert message in told
    assert "in play\n    await t.ask(" in told


def test_a_reply_as_a_prompt() -> None:
    async def play(t: Table) -> Any:
        reply = await t.ask("ann", "?")
        await t.ask("bob", reply)  # pyrefly: ignore[bad-argument-type]

    assert "the prompt for 'bob' is a Reply; pass its text: reply.answer" in refusal(Duel(play))


def test_choices_may_come_from_a_generator() -> None:
    batch = step(
        Duel(asking("ann", "?", choices=(x for x in "ab")), group_size=1, tasks_per_step=1)
    )
    assert batch.episodes[0].rewards["ann"] == 1.0


def test_several_questions_need_a_mapping() -> None:
    async def play(t: Table) -> Any:
        await t.ask_all(["ann", "bob"])  # pyrefly: ignore[bad-argument-type]

    assert "ask_all got ['ann', 'bob'], a list; expected role -> prompt" in refusal(Duel(play))


def test_a_text_to_show_that_is_none() -> None:
    async def play(t: Table) -> Any:
        t.tell(3, to="ann")  # pyrefly: ignore[bad-argument-type]

    assert "the text for 'ann' is 3, an int; expected text" in refusal(Duel(play))


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_an_await_that_is_forgotten_where_the_reply_is_read() -> None:
    async def play(t: Table) -> Any:
        reply: Any = t.ask("ann", "?")
        return {"ann": float(len(reply.answer)), "bob": 0.0}

    told = refusal(Duel(play))
    gc.collect()
    assert "'coroutine' object has no attribute 'answer'" in told
    assert "is `await` missing? Write reply = await t.ask(...)" in told


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_an_await_that_is_forgotten_where_nothing_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(t: Table) -> Any:
        t.ask("ann", "?")  # pyrefly: ignore[unused-coroutine]
        return {"ann": 1.0, "bob": 0.0}

    step(Duel(play))
    gc.collect()
    assert "no seat was asked in 4 plays of arena 'duel'" in caplog.text
    assert "is `await` missing before t.ask(...)?" in caplog.text


def test_a_question_after_the_play() -> None:
    tables: list[Table] = []

    async def play(t: Table) -> Any:
        tables.append(t)
        await t.ask("ann", "?")
        return {"ann": 1.0, "bob": 0.0}

    step(Duel(play))
    with pytest.raises(
        ArenaError, match=r"ask\('ann', ...\) after the play of task 't0' has ended"
    ):
        asyncio.run(tables[0].ask("ann", "?"))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"roles": ("ann")}, "roles of arena 'duel' is the text 'ann'; write (\"ann\",)"),
        ({"roles": ()}, "roles of arena 'duel' is (); expected one name or more, each once"),
        ({"roles": ("ann", "ann")}, "is ('ann', 'ann'); expected one name or more, each once"),
        ({"roles": (1, 2)}, "is (1, 2); expected one name or more, each once"),
        ({"illegal": "rety"}, "illegal of arena 'duel' is 'rety'; did you mean 'retry'?"),
        ({"utility": "zerosum"}, "utility of arena 'duel' is 'zerosum'; did you mean 'zero_sum'?"),
        ({"max_tokens": 0}, "max_tokens of arena 'duel' is 0; expected a whole number, at least 1"),
        ({"max_tokens": "many"}, "max_tokens of arena 'duel' is 'many'; expected a whole number"),
        ({"group_size": 0}, "group_size of arena 'duel' is 0; expected a whole number, at least 1"),
        ({"tasks_per_step": 2.5}, "tasks_per_step of arena 'duel' is 2.5; expected a whole number"),
        ({"system": "Be brief."}, "system of arena 'duel' is 'Be brief.', a str; expected role ->"),
        ({"system": {"ana": "x"}}, "system of arena 'duel' names 'ana'; did you mean 'ann'?"),
        ({"play_timeout_s": 0}, "play_timeout_s of arena 'duel' is 0; expected seconds above 0"),
    ],
)
def test_attributes(attributes: Any, message: str) -> None:
    assert message in refusal(Duel(**attributes))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (lambda rng: None, "tasks() of arena 'duel' returned None; write yield Task(id=..., data="),
        (lambda rng: Task(id="t"), "returned Task(id='t'), a Task; write yield"),
        (
            lambda rng: [{"id": "t"}],
            "tasks() of arena 'duel' yielded {'id': 't'}, a dict; expected",
        ),
        (lambda rng: ["x" * 500], "xxx..., a str; expected a Task, such as Task(id='sum/1', data="),
        (
            lambda rng: [Task(**dict[str, Any](id=3))],
            "yielded a Task whose id is 3, an int; expected text",
        ),
        (
            lambda rng: [Task(**dict[str, Any](id="t", level=3))],
            "yielded task 't' with level=3, an int; expected text, or None",
        ),
        (
            lambda rng: [Task(**dict[str, Any](id="t", seed=None))],
            "yielded task 't' with seed=None; expected a whole number",
        ),
        (lambda rng: [], "arena 'duel' has no tasks; tasks(rng) yielded none"),
        (lambda: [], "tasks() of arena 'duel' takes (); write def tasks(self, rng)"),
        (lambda rng: [Task(**dict[str, Any]())], "Missing required argument 'id'"),
    ],
)
def test_tasks(tasks: Any, message: str) -> None:
    told = refusal(Duel(tasks=tasks))
    assert message in told
    assert len(told) < 600


def test_tasks_that_are_async() -> None:
    async def tasks(rng: random.Random) -> Any:
        yield Task(id="t")

    assert "a async_generator; write def tasks" not in refusal(Duel(tasks=tasks))
    assert "tasks() of arena 'duel' is async; write def tasks(self, rng)" in refusal(
        Duel(tasks=tasks)
    )


def test_a_constructor_that_forgets_its_base() -> None:
    class Mine(Duel):
        def __init__(self) -> None:
            self.questions = ()

    assert "Mine.__init__ does not call super().__init__(" in refusal(Mine())


@pytest.mark.parametrize(
    ("parse", "reason"),
    [
        (int, "'a' was not understood: invalid literal for int()"),
        (lambda answer: {"b": 1}[answer], "'a' was not understood: KeyError: 'a'"),
        (lambda answer: answer.split()[1], "IndexError: list index out of range"),
        (lambda answer: re.match("b", answer)[0], "TypeError: 'NoneType' object is not"),  # pyrefly: ignore[unsupported-operation]
        (lambda answer: re.match("b", answer).group(), "AttributeError: 'NoneType' object has no"),  # pyrefly: ignore[missing-attribute]
        (lambda answer: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_parse_raises_over_an_answer_is_an_illegal_move(parse: Any, reason: str) -> None:
    for episode in step(Duel(asking("ann", "?", parse=parse))).episodes:
        assert episode.error is None
        assert episode.rewards == {"ann": -1.0, "bob": 0.0}
        assert reason in episode.notes[0]


def test_what_parse_raises_otherwise_fails_the_play() -> None:
    def parse(answer: str) -> Any:
        return undefined  # pyrefly: ignore[unknown-name]  # noqa: F821

    assert "NameError: name 'undefined' is not defined" in refusal(
        Duel(asking("ann", "?", parse=parse))
    )


class Race(Game):
    """Whoever moves second wins; methods are replaced from outside."""

    roles = ("ann", "bob")

    def __init__(self, **replaced: Any) -> None:
        for name, value in replaced.items():
            setattr(self, name, value)

    def start(self, rng: random.Random) -> int:
        return 0

    def turn(self, state: int) -> str | None:
        return self.roles[state] if state < 2 else None

    def view(self, state: int, role: str) -> str:
        return f"{state}"

    def legal(self, state: int, role: str) -> Any:
        return ["a"]

    def play(self, state: int, move: str) -> int:
        return state + 1

    def payoff(self, state: int) -> Any:
        return {"ann": -1.0, "bob": 1.0}


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"payoff": lambda state: None}, "payoff() of game 'race' returned None; is a `return` m"),
        ({"payoff": lambda state: {"ann": 0.0}}, "returned rewards for 'ann'; expected"),
        (
            {"legal": lambda state, role: [1]},
            "the choices for 'ann' hold 1, an int; expected texts",
        ),
        ({"turn": lambda state: 0}, "turn(0) is 0; expected one of ('ann', 'bob')"),  # not the end
    ],
)
def test_games(replaced: Any, message: str) -> None:
    arena = GameArena(Race(**replaced), ScriptedClient(lambda _: "a"), credit_assigner=GRPOCredit())
    assert message in refusal(arena)


def test_a_game_whose_roles_are_a_text() -> None:
    with pytest.raises(
        ArenaError, match=r"roles of game 'race' is the text 'ann'; write \(\"ann\""
    ):
        GameArena(Race(roles="ann"))
