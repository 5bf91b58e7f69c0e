"""Countdown: write an expression of given numbers that has a given value."""

import operator
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice, permutations, product
from typing import Any

from arenas.expressions import value_of
from legos import Arena, Table, Task, hold_out

__all__ = ["Countdown", "solution"]

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}  # those of the tasks


def solution(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """The value of an expression that uses each number once; None: it is not one.

    Marks of code or formulas around it are dropped, and a value that is given after ``=``.
    """
    try:
        value, used = value_of(expression.partition("=")[0].strip().strip("`$"))
    except ValueError:
        return None
    return value if sorted(used) == sorted(numbers) else None


class Countdown(Arena):
    """Combine all given numbers with + - * / so that the expression has the given value.

    The reply is the expression alone, such as ``(2 + 3) * 7``, or with ``= 35`` after it, which is
    not read. Each task is made from a random
    expression, so it has a solution. A tenth of the tasks is held out.

    Rewards: 1 for a right expression, 0.1 for one that uses each number once, otherwise 0. Credit
    compares the answers to one task. The number that shows learning is
    ``reward_part_player/correct`` on held-out tasks: 1 for a right expression, 0 otherwise.

    With ``operator`` the prompt has two numbers in order, and the model picks +, - or * between
    them. So a model that cannot write an expression, such as the built-in one, can learn too;
    picking at random is right in a third of the tasks.
    """

    reward_weights: Mapping[str, float] = {"correct": 0.9, "format": 0.1}
    max_tokens = 64
    recommended: Mapping[str, object] = {
        "loop.evaluate_every": 25,
        "loop.evaluation_plays": 512,
        "loop.steps": 150,
        "training.entropy_coef": 0.1,
        "training.entropy_coef_end": 0.01,
    }

    def __init__(
        self,
        client: Any = None,
        *,
        size: int = 3,
        largest: int = 9,
        operator: bool = False,
        **kwargs: Any,
    ) -> None:
        """Set how many numbers there are, the largest, and whether only an operator is asked for.

        Raises:
            ValueError: fewer than two numbers, none above 0, an operator of more than two, or so
                few tasks that none is held out.
        """
        if size < 2 or largest < 1:
            raise ValueError(f"size is {size} and largest {largest}; expected at least 2 and 1")
        if operator and size > 2:
            raise ValueError(f"operator is true and size is {size}; only size 2 has one operator")
        super().__init__(client, **kwargs)
        self.size, self.largest, self.operator = size, largest, operator
        self.restrict_choices = operator
        if not any(held_out for _, held_out in islice(self._drawn(random.Random(0)), 1000)):
            raise ValueError(
                f"size {size} and largest {largest} give so few tasks that none is held out; give "
                "a larger number"
            )

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Random numbers, and the value of a random expression of them."""
        return (task for task, held_out in self._drawn(rng) if not held_out)

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The tenth of such tasks that is never trained on."""
        return (task for task, held_out in self._drawn(rng) if held_out)

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """One expression."""
        numbers, target = t.task.data
        if self.operator:
            left, right = numbers
            prompt = f"{left} ? {right} = {target}\nMoves: {' '.join(OPERATORS)}"
            picked = await t.ask("player", prompt, choices=tuple(OPERATORS))
            said = f"{left} {picked.move} {right}"
        else:
            listed = ", ".join(map(str, numbers))
            prompt = f"Use {listed} once each with + - * / to make {target}. Write the expression."
            said = (await t.ask("player", prompt)).answer
        value = solution(said, numbers)
        return {"player": {"correct": float(value == target), "format": float(value is not None)}}

    def example(self, role: str, prompt: str, rng: random.Random) -> str | None:
        """The numbers of the prompt in any order, with any operators; none where choices are."""
        if self.operator:
            return None
        numbers = re.findall(r"\d+", prompt.partition(" once")[0])
        first, *others = rng.sample(numbers, len(numbers))
        return first + "".join(f" {rng.choice(tuple(OPERATORS))} {number}" for number in others)

    def oracle(
        self, role: str, prompt: str, task: Task, rng: random.Random
    ) -> tuple[str, float] | None:
        """The first expression with the value, among all orders and operators of the tasks."""
        numbers, target = task.data
        for order in [numbers] if self.operator else permutations(numbers):
            for signs in product(OPERATORS, repeat=len(order) - 1):
                said = str(order[0])
                for place, (sign, number) in enumerate(zip(signs, order[1:], strict=True)):
                    said = f"({said}) {sign} {number}" if place else f"{said} {sign} {number}"
                if solution(said, numbers) == target:
                    return signs[0] if self.operator else said, 1.0
        return None

    def reference(self) -> Mapping[str, float]:
        """Rewards of an oracle and of silence, and how often chance is right."""
        if self.operator:  # two operators are right in 2 + 2 = 4 and 2 * 2 = 4
            twice = 2 / (9 * self.largest**2) if self.largest > 1 else 0.0
            return {"oracle": 1.0, "random_operator_right": 1 / 3 + twice}
        known = {"oracle": 1.0, "idle": 0.0}
        if (self.size, self.largest) == (3, 9):  # in the order of the prompt, without brackets
            known["random_expression_right"] = 26970 / 354294
        return known

    def _drawn(self, rng: random.Random) -> Iterator[tuple[Task, bool]]:
        """Random tasks, and whether each is held out; the order of the numbers does not decide."""
        while True:
            numbers = [rng.randint(1, self.largest) for _ in range(self.size)]
            target = numbers[0]
            for number in numbers[1:]:
                target = rng.choice(tuple(OPERATORS.values()))(target, number)
            shown = numbers if self.operator else rng.sample(numbers, len(numbers))
            task = Task(id=f"{' '.join(map(str, shown))} = {target}", data=(tuple(shown), target))
            unordered = Task(id=task.id, data=(sorted(numbers), abs(target)))
            yield task, not hold_out([unordered], 0.1)[0]
