"""Sums, differences and products, answered in words: the smallest arena for a chat model."""

import operator
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from legos import Arena, Episode, Table, Task, hold_out

__all__ = ["Sums"]

LEVELS = {  # easiest first: sign, digits of each number
    "sum1": ("+", 1),
    "sum2": ("+", 2),
    "difference2": ("-", 2),
    "product1": ("*", 1),
    "product2": ("*", 2),
}
_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # in 9,801
_MINUS = "\u2212"


class Sums(Arena):
    """Say what two numbers make, such as 17 + 25.

    Levels: ``sum1`` (numbers of one digit), ``sum2`` (of two), ``difference2``, ``product1`` and
    ``product2``; a run has those up to ``hardest``. A tenth of the questions is held out, each in
    both orders of its numbers.

    Rewards: 1 if the last number of the answer is right, and 0.2 if the answer ends before its
    token limit. Credit compares the answers to one question. The number that shows learning is
    ``reward_part_player/correct`` on held-out questions.
    """

    reward_weights: Mapping[str, float] = {"correct": 1.0, "complete": 0.2}
    references: Mapping[str, float] = {"oracle": 1.2, "idle": 0.2}  # rewards
    max_tokens = 16

    def __init__(self, client: Any = None, *, hardest: str = "sum2", **kwargs: Any) -> None:
        """Name the hardest level.

        Raises:
            ValueError: there is no such level.
        """
        if hardest not in LEVELS:
            raise ValueError(f"hardest is {hardest!r}; expected one of: {', '.join(LEVELS)}")
        super().__init__(client, **kwargs)
        self.levels = tuple(LEVELS)[: list(LEVELS).index(hardest) + 1]

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """Random questions that are not held out."""
        return (task for task, held_out in self._drawn(rng) if not held_out)

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The tenth of the questions that is never trained on."""
        return (task for task, held_out in self._drawn(rng) if held_out)

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """One answer."""
        reply = await t.ask("player", self.question(t.task))
        said = _SEPARATOR.sub("", reply.answer.replace(_MINUS, "-"))
        correct = _NUMBER.findall(said)[-1:] == [self.right(t.task)]
        complete = not reply.truncated
        return {"player": {"correct": float(correct), "complete": float(complete)}}

    def question(self, task: Task) -> str:
        """What a play asks."""
        left, sign, right = task.data
        return f"{left} {sign} {right} = ?\nAnswer with the number."

    def right(self, task: Task) -> str:
        """The right number."""
        left, sign, right = task.data
        return str(_SIGNS[sign](left, right))

    def success(self, episode: Episode) -> float:
        """Whether the number was right."""
        return episode.parts["player"]["correct"]

    def oracle(self, role: str, prompt: str, task: Task, rng: random.Random) -> tuple[str, float]:
        """The right number."""
        return self.right(task), 1.2

    def _drawn(self, rng: random.Random) -> Iterator[tuple[Task, bool]]:
        """Random questions, and whether each is held out."""
        while True:
            level = rng.choice(self.levels)
            sign, digits = LEVELS[level]
            left, right = (rng.randrange(10**digits) for _ in range(2))
            task = Task(id=f"{left} {sign} {right}", data=(left, sign, right), level=level)
            unordered = Task(id=task.id, data=(sign, *sorted((left, right))))
            yield task, not hold_out([unordered], 0.1)[0]
