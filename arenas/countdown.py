"""Countdown: write an expression of given numbers that has a given value."""

import operator
import random
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from arenas.expressions import value_of
from legos import Arena, Table, Task

__all__ = ["Countdown", "solution"]


def solution(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """The value of an expression that uses each number once; None: it is not one."""
    try:
        value, used = value_of(expression)
    except ValueError:
        return None
    return value if sorted(used) == sorted(numbers) else None


class Countdown(Arena):
    """Combine all given numbers with + - * / so that the expression has the given value.

    Each task is made from a random expression, so it has a solution. The number that shows learning
    is the mean reward: 1 for a right expression, 0.1 for one that uses each number once.
    """

    reward_weights: Mapping[str, float] = {"correct": 0.9, "format": 0.1}
    max_tokens = 64

    def __init__(
        self, client: Any = None, *, size: int = 3, largest: int = 9, **kwargs: Any
    ) -> None:
        """Set how many numbers there are, and the largest.

        Raises:
            ValueError: fewer than two numbers, or none above 0.
        """
        if size < 2 or largest < 1:
            raise ValueError(f"size is {size} and largest {largest}; expected at least 2 and 1")
        super().__init__(client, **kwargs)
        self.size, self.largest = size, largest

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Random numbers, and the value of a random expression of them."""
        while True:
            numbers = [rng.randint(1, self.largest) for _ in range(self.size)]
            target = numbers[0]
            for number in numbers[1:]:
                target = rng.choice((operator.add, operator.sub, operator.mul))(target, number)
            shuffled = rng.sample(numbers, len(numbers))
            name = f"{' '.join(map(str, shuffled))} = {target}"
            yield Task(id=name, data=(tuple(shuffled), target))

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """One expression."""
        numbers, target = t.task.data
        listed = ", ".join(map(str, numbers))
        prompt = f"Use {listed} once each with + - * / to make {target}. Write the expression."
        said = (await t.ask("player", prompt)).answer
        value = solution(said, numbers)
        return {"player": {"correct": float(value == target), "format": float(value is not None)}}
