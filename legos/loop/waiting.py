"""The groups that are played and that wait for the trainer, and what some have together."""

from dataclasses import dataclass
from typing import NamedTuple

from legos.records.sample import TrainingBatch

__all__ = ["Admission", "Amount", "Waiting", "num_tokens"]


def num_tokens(batch: TrainingBatch) -> int:
    """Number of chosen tokens in a batch."""
    return sum(len(sample.positions) for sample in batch.samples)


class Amount(NamedTuple):
    """What some groups have together."""

    tasks: int = 0
    samples: int = 0
    tokens: int = 0  # chosen tokens

    def plus(self, other: "Amount", times: int = 1) -> "Amount":
        """This amount and another one, so many times."""
        return Amount(*(a + times * b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group that waits."""

    batch: TrainingBatch
    number: int  # number of groups that arrived before it
    tokens: int  # number of chosen tokens
    oldest: int  # policy version of its oldest token; -1: it has no samples
    newest: int  # policy version of its newest token; -1: it has no samples
    uses: int = 0  # number of steps that were trained on it

    @classmethod
    def of(cls, batch: TrainingBatch, number: int, uses: int = 0) -> "Waiting":
        """Count the tokens of a group, and look at their versions."""
        return cls(
            batch,
            number,
            tokens=num_tokens(batch),
            oldest=min((sample.oldest_version for sample in batch.samples), default=-1),
            newest=max((sample.newest_version for sample in batch.samples), default=-1),
            uses=uses,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A group that was admitted and is being played."""

    arena: str
    num_tasks: int
    version: int  # newest policy version when the group was admitted
