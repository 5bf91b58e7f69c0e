"""One training sequence, with everything per token."""

import math
from collections.abc import Sequence
from operator import le
from typing import Any, SupportsFloat

from msgspec import Struct

from legos.errors import RecordError
from legos.records.names import POLICY

MAX_ADVANTAGE = 1e12  # its square, times the tokens of a step, is within the range of float32
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
        num_chosen = len(self.positions)
        lengths = (len(self.logprobs), len(self.versions), len(self.advantages), len(self.legal))
        if lengths != (num_chosen,) * 4:
            raise RecordError(
                f"a sample with {num_chosen} chosen tokens has fields of lengths {lengths}"
            )
        if not num_chosen:
            raise RecordError("a sample without a chosen token has nothing to train on")
        if self.positions[0] < 1 or self.positions[-1] >= len(self.token_ids):
            raise RecordError(
                f"positions {self.positions[0]}..{self.positions[-1]} leave "
                f"1..{len(self.token_ids) - 1}"
            )
        if num_chosen > 1 and not _increase(self.positions):
            raise RecordError(f"positions {self.positions} do not increase")
        if not 0 < self.temperature < math.inf:
            raise RecordError(
                f"completions at temperature {self.temperature} have no ratio (0 is greedy); "
                "sample at a finite temperature above 0"
            )
        self._check_logprobs()
        given, limit = self.advantages, MAX_ADVANTAGE
        if not (_all_finite(given) and max(given) <= limit and min(given) >= -limit):
            bad = next(a for a in given if not abs(a) <= limit)
            raise RecordError(
                f"advantage {bad} is not finite, or its size is above {MAX_ADVANTAGE:g}; look at "
                f"the rewards of {self.group!r}, and at the credit rule"
            )
        if self.reference_logprobs is not None:
            self._check_reference(self.reference_logprobs)
        if self.restricted:
            self._check_legal()

    def _check_logprobs(self) -> None:
        try:
            fine = _all_finite(self.logprobs) and max(self.logprobs) <= LOGPROB_ROUNDING
        except TypeError:  # an endpoint may report None instead of a number
            fine = False
        if not fine:
            bad = next(given for given in self.logprobs if not _is_logprob(given))
            raise RecordError(
                f"log-probability {bad} is not a finite number <= 0; the engine must report one"
            )

    def _check_reference(self, given: tuple[float, ...]) -> None:
        if len(given) != len(self.positions) or not all(map(_is_logprob, given)):
            raise RecordError(
                f"reference_logprobs holds {len(given)} numbers for {len(self.positions)} chosen "
                "tokens; expected one finite number <= 0 for each, or None"
            )

    def _check_legal(self) -> None:
        for position, legal in zip(self.positions, self.legal, strict=True):
            if self.token_ids[position] not in legal:
                raise RecordError(
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


def _all_finite(numbers: Sequence[float]) -> bool:
    """Whether all numbers are finite: their sum usually tells, in a tenth of the time."""
    return math.isfinite(sum(numbers)) or all(map(math.isfinite, numbers))


def _increase(positions: Sequence[int]) -> bool:
    """Whether positions increase; most are one answer, without a gap."""
    first, last = positions[0], positions[-1]
    if last - first + 1 == len(positions) and positions == tuple(range(first, last + 1)):
        return True
    return not any(map(le, positions[1:], positions))


def _is_logprob(given: Any) -> bool:
    return isinstance(given, SupportsFloat) and -math.inf < float(given) <= LOGPROB_ROUNDING
