"""Sums, differences and products, answered in words: the smallest arena for a chat model."""

import operator
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
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
    ``product2``; a run has those up to ``hardest``. A tenth of the questions is held out, of those
    with one digit three tenths, each in both orders of its numbers.

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
        while True:
            level = rng.choice(self.levels)
            size = 10 ** LEVELS[level][1]
            task = _task(level, rng.randrange(size), rng.randrange(size))
            if not _is_held_out(task):
                yield task

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The questions that are never trained on, each once, of all levels in turn."""
        given = set()  # 3 + 4 is a question of sum1 and of sum2
        for questions in zip_longest(*(_held_out(level, rng) for level in self.levels)):
            for task in questions:
                if task is not None and task.id not in given:
                    given.add(task.id)
                    yield task

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


def _held_out(level: str, rng: random.Random) -> Iterator[Task]:
    """The held-out questions of one level, in random order."""
    size = 10 ** LEVELS[level][1]
    every = (_task(level, *divmod(both, size)) for both in rng.sample(range(size**2), size**2))
    return filter(_is_held_out, every)


def _is_held_out(task: Task) -> bool:
    """Whether a question is held out, in both orders of its numbers."""
    left, sign, right = task.data
    unordered = Task(id=task.id, data=(sign, *sorted((left, right))))
    share = 0.3 if max(left, right) < 10 else 0.1  # few questions have one digit
    return bool(hold_out([unordered], share)[1])


def _task(level: str, left: int, right: int) -> Task:
    sign, _ = LEVELS[level]
    return Task(id=f"{left} {sign} {right}", data=(left, sign, right), level=level)
