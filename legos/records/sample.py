"""Merge turns into training sequences, as long as each prompt extends the tokens before it."""

import math
from collections.abc import Mapping, Sequence
from operator import le
from typing import Any, SupportsFloat

from msgspec import Struct, field

from legos.errors import RecordError
from legos.records.episode import Episode, Rollout, Task
from legos.records.message import Completion
from legos.records.names import POLICY

__all__ = ["Group", "Sample", "TrainingBatch", "samples_of_rollout"]

MAX_ADVANTAGE = 1e12  # its square, times the tokens of a step, is within the range of float32
LOGPROB_ROUNDING = 1e-4  # a log-probability may exceed 0 by this rounding error


class Sample(Struct, frozen=True, kw_only=True, gc=False):
    """One training sequence of T tokens, of which A were chosen by the policy.

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


class TrainingBatch(Struct, frozen=True, kw_only=True):
    """The samples of some plays, not packed, and the count of every token.

    ``tokens_generated`` equals the samples' chosen tokens plus ``tokens_discarded`` of all reasons.
    ``weights`` has the number of values of each metric that is a mean; other metrics are counts.
    """

    samples: tuple[Sample, ...] = ()
    episodes: tuple[Episode, ...] = ()
    tokens_generated: int = 0
    tokens_discarded: Mapping[str, int] = field(default_factory=dict[str, int])  # reason -> tokens
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    num_tasks: int = 1  # number of tasks drawn for its plays
    arena: str = ""  # name of the arena that was played; "": unknown

    def __post_init__(self) -> None:
        """Check that the token counts balance.

        Raises:
            RecordError: they do not; the message gives both sides of the equation.
        """
        kept = sum(len(sample.positions) for sample in self.samples)
        lost = sum(self.tokens_discarded.values())
        if kept + lost != self.tokens_generated:
            raise RecordError(
                f"{self.tokens_generated} tokens were generated but {kept} are in samples "
                f"and {lost} discarded"
            )

    @property
    def num_tokens(self) -> int:
        """Number of chosen tokens in the samples."""
        return self.tokens_generated - sum(self.tokens_discarded.values())

    @property
    def oldest_version(self) -> int:
        """Policy version of its oldest chosen token; -1: it has no samples."""
        return min((sample.oldest_version for sample in self.samples), default=-1)

    @property
    def newest_version(self) -> int:
        """Policy version of its newest chosen token; -1: it has no samples."""
        return max((sample.newest_version for sample in self.samples), default=-1)


class Group(TrainingBatch, frozen=True, kw_only=True):
    """The plays of one task, or of one step, that are compared with each other: the unit of flow.

    The cursor plans it, the batcher admits it, the player adds what was played, and it waits in the
    buffer for the trainer.
    """

    plays: tuple[tuple[Task, int], ...] = ()  # tasks to play, each with the seed of its play
    round: int = 0  # number of the round of tasks that it belongs to
    numbers: tuple[int, ...] = ()  # indices of its tasks in the round
    admitted_version: int = 0  # newest policy version when it was admitted


def samples_of_rollout(
    rollout: Rollout, advantages: Sequence[float], *, group: str, name: str = ""
) -> tuple[list[Sample], int]:
    """Merge turns into samples; a turn joins a sample if its prompt extends the sample's tokens.

    A rollout may have several conversations, whose turns may come in any order.

    Args:
        rollout: the turns of one trained seat.
        advantages: [number of turns] one advantage per turn, for each of its tokens.
        group: the name of the plays that are compared with each other.
        name: name of the rollout, the same for all its samples.

    Returns:
        The samples, and the number of breaks (turns that start a new sample after the first).
    """
    runs: list[list[tuple[Completion, float]]] = []
    sizes: list[int] = []  # number of tokens of each run
    for turn, advantage in zip(rollout.turns, advantages, strict=True):
        completion = turn.completion
        num_prompt = len(completion.prompt_ids)
        number = len(runs) - 1
        while number >= 0 and (
            sizes[number] > num_prompt or not _continues(runs[number], completion)
        ):
            number -= 1
        if number < 0:  # it starts a run
            number = len(runs)
            runs.append([])
            sizes.append(0)
        runs[number].append((completion, advantage))
        sizes[number] = num_prompt + len(completion.token_ids)
    samples = [_sample_of_turns(run, rollout, group=group, name=name) for run in runs]
    return samples, max(0, len(runs) - 1)


def _continues(run: Sequence[tuple[Completion, float]], completion: Completion) -> bool:
    """Whether a prompt starts with all earlier tokens, and the sampling settings are the same.

    One sample has one temperature, and either all or none of its tokens are restricted to legal
    ones.
    """
    last = run[-1][0]
    before = len(last.prompt_ids)
    return (
        completion.prompt_ids[before : before + len(last.token_ids)] == last.token_ids
        and completion.prompt_ids[:before] == last.prompt_ids
        and (completion.restricted, completion.temperature) == (last.restricted, last.temperature)
    )


def _sample_of_turns(
    run: Sequence[tuple[Completion, float]], rollout: Rollout, *, group: str, name: str
) -> Sample:
    # Sums of tuples: most runs are one turn, and () + turn is the turn itself, not a copy.
    positions: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    advantages: tuple[float, ...] = ()
    legal: tuple[tuple[int, ...], ...] = ()
    truncated = False
    for completion, advantage in run:
        start, count = len(completion.prompt_ids), len(completion.token_ids)
        positions += (start,) if count == 1 else tuple(range(start, start + count))
        logprobs += completion.logprobs
        versions += completion.versions
        advantages += (advantage,) * count
        legal += completion.legal or ((),) * count
        truncated = truncated or completion.finish_reason == "length"
    last = run[-1][0]
    return Sample(
        token_ids=last.prompt_ids + last.token_ids,
        positions=positions,
        logprobs=logprobs,
        versions=versions,
        advantages=advantages,
        legal=legal,
        restricted=last.restricted,
        temperature=last.temperature,
        group=group,
        rollout=name,
        role=rollout.role,
        policy=rollout.policy or POLICY,
        truncated=truncated,
    )
