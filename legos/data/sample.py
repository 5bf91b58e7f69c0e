"""From turns to training sequences: one sample per stretch of tokens that only grew."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, SupportsFloat

from msgspec import Struct, field

from legos.data.episode import Episode, Rollout, Turn
from legos.errors import RecordError

__all__ = ["Sample", "TrainingBatch", "samples_of_rollout"]

LOGPROB_ROUNDING = 1e-4  # a certain token may come out this far above 0


class Sample(Struct, frozen=True, kw_only=True):
    """One training sequence of T tokens, of which A were chosen by the policy.

    Everything but the tokens is held for the chosen tokens alone, in the order of ``positions``.
    """

    token_ids: tuple[int, ...]  # [T] as sampled, never re-derived from text
    positions: tuple[int, ...]  # [A] places of the chosen tokens, increasing, in 1..T-1
    logprobs: tuple[float, ...]  # [A] nats under the policy that sampled
    versions: tuple[int, ...]  # [A] policy version that sampled the token
    advantages: tuple[float, ...]  # [A]
    legal: tuple[tuple[int, ...], ...]  # [A] legal token ids at that place, () where unknown
    restricted: bool = False  # True: log-probabilities are over `legal` alone
    temperature: float = 1.0  # the temperature of the log-probabilities
    group: str = ""  # arena and task of the plays compared with each other
    rollout: str = ""  # samples that are parts of one rollout carry the same name
    role: str = ""
    truncated: bool = False  # True: the token limit cut one of its completions short

    def __post_init__(self) -> None:
        """Refuse a sample that could not be trained on honestly.

        Raises:
            RecordError: unequal lengths, positions that do not increase within the sequence, a
                log-probability that is not a finite number <= 0, a non-finite advantage, greedy
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
        if any(after <= before for before, after in pairwise(self.positions)):
            raise RecordError(f"positions {self.positions} do not increase")
        if not 0 < self.temperature < math.inf:
            raise RecordError(
                f"completions at temperature {self.temperature} have no ratio (0 is greedy); "
                "sample at a finite temperature above 0"
            )
        self._check_logprobs()
        if not all(map(math.isfinite, self.advantages)):
            bad = [a for a in self.advantages if not math.isfinite(a)]
            raise RecordError(
                f"advantage {bad[0]} is not finite; look at the rewards of {self.group!r}"
            )
        if self.restricted:
            self._check_legal()

    def _check_logprobs(self) -> None:
        try:
            fine = all(map(math.isfinite, self.logprobs)) and max(self.logprobs) <= LOGPROB_ROUNDING
        except TypeError:  # an endpoint may report nothing in a number's place
            fine = False
        if not fine:
            bad = next(given for given in self.logprobs if not _is_logprob(given))
            raise RecordError(
                f"log-probability {bad} is not a finite number <= 0; the engine must report one"
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
        """The version of the oldest chosen token; staleness is measured from it."""
        return min(self.versions)


def _is_logprob(given: Any) -> bool:
    return isinstance(given, SupportsFloat) and -math.inf < float(given) <= LOGPROB_ROUNDING


class TrainingBatch(Struct, frozen=True, kw_only=True):
    """What one ``arena.step`` returns: samples, not packed, and the account of every token.

    ``tokens_generated`` equals the samples' chosen tokens plus ``tokens_discarded`` of all reasons.
    """

    samples: tuple[Sample, ...]
    episodes: tuple[Episode, ...]
    tokens_generated: int
    tokens_discarded: Mapping[str, int] = field(default_factory=dict[str, int])  # reason -> tokens
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Refuse a batch whose account does not balance.

        Raises:
            RecordError: with both sides of the account.
        """
        kept = sum(len(sample.positions) for sample in self.samples)
        lost = sum(self.tokens_discarded.values())
        if kept + lost != self.tokens_generated:
            raise RecordError(
                f"{self.tokens_generated} tokens were generated but {kept} are in samples "
                f"and {lost} discarded"
            )


def samples_of_rollout(
    rollout: Rollout, advantages: Sequence[float], *, group: str, name: str = ""
) -> tuple[list[Sample], int]:
    """Merge turns into samples; a turn joins where its prompt extends the tokens so far.

    Args:
        rollout: the turns of one trainable seat.
        advantages: [number of turns] one advantage per turn, spread over the turn's tokens.
        group: task id of the plays compared with each other.
        name: name of the rollout, the same for all its samples.

    Returns:
        The samples, and the number of breaks (places where a prompt did not extend what was said).
    """
    samples: list[Sample] = []
    breaks = 0
    run: list[tuple[Turn, float]] = []
    seen: tuple[int, ...] = ()
    for turn, advantage in zip(rollout.turns, advantages, strict=True):
        completion = turn.completion
        joins = run and _continues(run[-1][0], turn, seen)
        if run and not joins:
            samples.append(_sample_of_turns(run, seen, group=group, role=rollout.role, name=name))
            breaks += 1
            run = []
        run.append((turn, advantage))
        seen = completion.prompt_ids + completion.token_ids
    if run:
        samples.append(_sample_of_turns(run, seen, group=group, role=rollout.role, name=name))
    return samples, breaks


def _continues(last: Turn, turn: Turn, seen: tuple[int, ...]) -> bool:
    """Whether ``turn``'s prompt starts with all tokens seen so far, sampled in the same way."""
    completion = turn.completion
    same = (completion.restricted, completion.temperature) == (
        last.completion.restricted,
        last.completion.temperature,
    )
    return same and completion.prompt_ids[: len(seen)] == seen


def _sample_of_turns(
    run: Sequence[tuple[Turn, float]],
    token_ids: tuple[int, ...],
    *,
    group: str,
    role: str,
    name: str,
) -> Sample:
    first = run[0][0].completion
    positions: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    advantages: tuple[float, ...] = ()
    legal: tuple[tuple[int, ...], ...] = ()
    truncated = False
    for turn, advantage in run:
        completion = turn.completion
        start, count = len(completion.prompt_ids), len(completion.token_ids)
        positions += tuple(range(start, start + count))
        logprobs += completion.logprobs
        versions += completion.versions
        advantages += (advantage,) * count
        legal += completion.legal or ((),) * count
        truncated |= completion.finish_reason == "length"
    return Sample(
        token_ids=token_ids,
        positions=positions,
        logprobs=logprobs,
        versions=versions,
        advantages=advantages,
        legal=legal,
        restricted=first.restricted,
        temperature=first.temperature,
        group=group,
        rollout=name,
        role=role,
        truncated=truncated,
    )
