"""One training sequence, with everything per token."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import le
from typing import Any, SupportsFloat

from msgspec import Struct

from legos.errors import RecordError
from legos.records.names import POLICY

__all__ = ["Sample"]

MAX_ADVANTAGE = 1e12  # its square, times the tokens of a step, is within the range of float32
LARGEST = sys.float_info.max
LOGPROB_ROUNDING = 1e-4  # a log-probability may exceed 0 by this rounding error


class Sample(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """One training sequence of T tokens, of which A were chosen by the policy; stored as an array.

    All fields of length A are for the chosen tokens only, in the order of ``positions``. Reference
    log-probabilities have the same temperature and the same legal tokens.
    """

    token_ids: tuple[int, ...]  # [T] as sampled, never encoded again from text
    positions: tuple[int, ...]  # [A] indices of the chosen tokens, increasing, in 1..T-1
    logprobs: tuple[float, ...]  # [A] nats under the policy that sampled
    versions: tuple[int, ...]  # [A] policy version that sampled the token
    advantages: tuple[float, ...]  # [A] advantage of each chosen token
    legal: tuple[tuple[int, ...], ...]  # [A] legal token ids at that position, () where unknown
    reference_logprobs: tuple[float, ...] | None = None  # [A] nats; None: the backend computes them
    restricted: bool = False  # True: log-probabilities are over `legal` only
    temperature: float = 1.0  # temperature of the log-probabilities
    group: str = ""  # arena, task and, if the rule has one, scope of the plays that are compared
    rollout: str = ""  # name of the rollout, equal for all its samples
    role: str = ""
    policy: str = POLICY  # the trained adapter that sampled it
    truncated: bool = False  # True: the token limit cut off one of its completions

    @property
    def compared(self) -> tuple[str, str]:
        """Group and role; samples with the same ones are compared with each other."""
        return self.group, self.role

    def __post_init__(self) -> None:
        """Check that the sample can be trained on.

        Raises:
            RecordError: unequal lengths, positions that do not increase within the sequence, a
                log-probability that is not a finite number <= 0, an advantage out of range, greedy
                sampling, or a token outside the only legal ones.
        """
        for complaint in self._complaints():
            raise RecordError(complaint)

    def _complaints(self) -> Iterator[str]:
        """Yield a message for the first reason why it cannot be trained on."""
        chosen, given = self.positions, self.reference_logprobs
        lengths = [len(self.logprobs), len(self.versions), len(self.advantages), len(self.legal)]
        lengths += [] if given is None else [len(given)]
        if not chosen or set(lengths) != {len(chosen)}:
            yield f"a sample with {len(chosen)} chosen tokens has fields of lengths {lengths}"
        if chosen[0] < 1 or chosen[-1] >= len(self.token_ids) or any(map(le, chosen[1:], chosen)):
            yield f"positions {chosen} do not increase within 1..{len(self.token_ids) - 1}"
        if not 0 < self.temperature < math.inf:
            yield (
                f"completions at temperature {self.temperature} have no ratio (0 is greedy); "
                "sample at a finite temperature above 0"
            )
        for logprob in _outside((*self.logprobs, *(given or ())), -LARGEST, LOGPROB_ROUNDING):
            yield f"log-probability {logprob} is not a finite number <= 0, as an engine reports one"
        for advantage in _outside(self.advantages, -MAX_ADVANTAGE, MAX_ADVANTAGE):
            yield (
                f"advantage {advantage} is not finite, or its size is above {MAX_ADVANTAGE:g}; "
                f"look at the rewards of {self.group!r}, and at the credit rule"
            )
        for position, legal in zip(chosen, self.legal, strict=True) if self.restricted else ():
            if self.token_ids[position] not in legal:
                yield (
                    f"token {self.token_ids[position]} was chosen where only {legal} could be "
                    "sampled; a restricted sample needs its legal tokens"
                )

    @property
    def oldest_version(self) -> int:
        """The smallest policy version of its chosen tokens, which determines the staleness."""
        first = self.versions[0]
        return first if self.versions.count(first) == len(self.versions) else min(self.versions)

    @property
    def newest_version(self) -> int:
        """The version of the newest chosen token."""
        first = self.versions[0]
        return first if self.versions.count(first) == len(self.versions) else max(self.versions)


def _outside(values: Sequence[Any], low: float, high: float) -> list[Any]:
    """What is no number from ``low`` to ``high``; fast where all are, as in almost all samples."""
    with suppress(TypeError):  # an endpoint may report None instead of a number
        if low <= min(values) and max(values) <= high and math.isfinite(sum(values)):
            return []
    return [v for v in values if not (isinstance(v, SupportsFloat) and low <= float(v) <= high)]
