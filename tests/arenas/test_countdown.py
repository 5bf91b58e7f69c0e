"""Countdown: its expressions, its tasks and its rewards."""

import asyncio
import random
from itertools import islice
from typing import Any

import pytest

from arenas.countdown import Countdown, solution
from legos import GRPOCredit
from legos.fakes import Asked, ScriptedClient


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 5) * 7", 56),
        ("7*(5+3)", 56),
        ("(3 + 5) * 7 = 56", 56),
        ("(3 + 5) * 7 = 57", 56),  # the value after the sign is not read
        ("`(3 + 5) \u00d7 7`", 56),
        ("$7 \u2212 (5 \u2212 3)$", 5),
        ("56 = (3 + 5) * 7", None),
        ("3 + 5", None),
        ("3 + 5 * 7 * 7", None),
        ("-3 + 5 + 7", None),
        ("3 ** 5 + 7", None),
        ("7 / (5 - 5)", None),
        ("(" * 1000 + "3", None),
        ("__import__('os')", None),
        ("True + 5 + 7", None),
    ],
)
def test_expressions(expression: str, value: int | None) -> None:
    assert solution(expression, (3, 5, 7)) == value


def test_countdown_has_solutions_and_the_same_tasks_for_one_seed() -> None:
    arena = Countdown(size=3, largest=5)
    tasks = list(islice(arena.tasks(random.Random(1)), 50))
    assert [t.id for t in tasks] == [t.id for t in islice(arena.tasks(random.Random(1)), 50)]
    for task in tasks:
        a, b, c = task.data[0]
        orders = [(a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)]
        values = {
            solution(f"({x} {f} {y}) {g} {z}", task.data[0])
            for x, y, z in orders
            for f in "+-*"
            for g in "+-*"
        }
        assert task.data[1] in values


def test_countdown_rewards() -> None:
    said = {"right": "{0} + {1}", "form": "{0} - {1}", "wrong": "{0}"}

    def play(kind: str) -> float:
        def answer(asked: Asked) -> str:
            numbers = asked.prompt.split(" once")[0].removeprefix("Use ").split(", ")
            return said[kind].format(*numbers)

        arena = Countdown(ScriptedClient(answer), size=2, credit_assigner=GRPOCredit())
        arena.tasks = lambda rng: [next(iter(adding(rng)))]
        arena.tasks_per_step = arena.group_size = 1
        return asyncio.run(arena.step()).episodes[0].rewards["player"]

    def adding(rng: random.Random) -> Any:
        for task in Countdown(size=2).tasks(rng):
            numbers, target = task.data
            if sum(numbers) == target and numbers[1]:
                yield task

    assert [play(kind) for kind in said] == [1.0, 0.1, 0.0]


@pytest.mark.parametrize("options", [{"size": 1}, {"largest": 0}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected at least 2 and 1"):
        Countdown(**options)


def test_held_out_tasks_are_never_trained_on() -> None:
    arena = Countdown(size=2, largest=20)
    trained = {task.id for task in islice(arena.tasks(random.Random(0)), 2000)}
    held_out = {task.id for task in islice(arena.held_out(random.Random(0)), 300)}
    assert len(held_out) > 30
    assert not trained & held_out

    def unordered(names: set[str]) -> set[tuple[str, ...]]:
        pairs = (name.replace("-", "").split(" = ") for name in names)
        return {(*sorted(numbers.split()), target) for numbers, target in pairs}

    assert not unordered(trained) & unordered(held_out)


def test_an_operator_alone_can_be_asked_for() -> None:
    def answer(asked: Asked) -> str:
        task, moves = asked.prompt.split("\nMoves: ")
        left, target = task.split(" = ")
        assert asked.sampling.choices == tuple(moves.split()) == ("+", "-", "*")
        return next(sign for sign in "+-*" if eval(left.replace("?", sign)) == int(target))

    arena = Countdown(ScriptedClient(answer), size=2, operator=True, credit_assigner=GRPOCredit())
    assert {e.rewards["player"] for e in asyncio.run(arena.step()).episodes} == {1.0}


def test_only_two_numbers_have_one_operator() -> None:
    with pytest.raises(ValueError, match="operator is true and size is 3; only size 2"):
        Countdown(operator=True)


def test_numbers_of_which_no_task_is_held_out_are_refused() -> None:
    with pytest.raises(ValueError, match="largest 2 give so few tasks that none is held out"):
        Countdown(size=3, largest=2)
