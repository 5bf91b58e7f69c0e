"""Countdown: its expressions, its tasks and its rewards."""

import asyncio
import random
from itertools import islice
from typing import Any

import pytest

from arenas.countdown import Countdown, solution
from legos import GRPOCredit
from legos.testing import Asked, ScriptedClient


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 5) * 7", 56),
        ("7*(5+3)", 56),
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
        arena.tasks = lambda rng: [next(iter(adding(rng)))]  # type: ignore[method-assign]
        arena.tasks_per_step = arena.group_size = 1
        return asyncio.run(arena.step()).episodes[0].rewards["player"]

    def adding(rng: random.Random) -> Any:
        for task in Countdown(size=2).tasks(rng):
            numbers, target = task.data
            if sum(numbers) == target and numbers[1]:
                yield task

    assert [play(kind) for kind in said] == [1.0, 0.1, 0.0]


@pytest.mark.parametrize("options", [{"size": 1}, {"largest": 0}])
def test_bad_options(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected at least 2 and 1"):
        Countdown(**options)
