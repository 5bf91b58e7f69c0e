"""What an optimiser step computed for each token of a play: for the plays that are stored."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from legos.credit.means import with_children
from legos.credit.merging import conversations
from legos.losses.corrections import correct
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES, ChosenTokens
from legos.losses.ratio import log_ratio
from legos.records.episode import Episode, Rollout
from legos.records.group import Group
from legos.records.sample import Sample
from legos.records.step import PassResult

Floats = NDArray[np.float32]


class PolicyPass(NamedTuple):
    """The part of an optimiser step that belongs to one policy."""

    policy: str
    version: int  # of the policy before the step
    objective: Objective
    samples: Sequence[Sample]
    found: PassResult
    metrics: Mapping[str, float]
    reason: str | None  # reason why the update was not applied; None: it was applied

    def too_long(self, sample: Sample) -> bool:
        """Whether a sample did not fit into memory even alone, so that it was left out."""
        limit = self.found.row_limit  # tokens before the last chosen one
        return limit is not None and sample.positions[-1] > limit


class TrainedTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the trainer computed for the C tokens of a turn, before its update."""

    reason: str | None = None  # why none of its tokens changed the policy; None: they did
    version: int | None = None  # of the policy before the step; None: the turn is in no sample
    advantage: float | None = None  # of each of its tokens
    logprobs: list[float] = []  # [C] nats, exact as float32; []: not computed, or not finite
    entropies: list[float] = []  # [C] nats, in the same way
    clipped: list[int] = []  # indices of tokens outside the clip range of the loss
    masked: list[int] = []  # indices of tokens that a correction dropped (``training.icepop``)


TrainedTurns = Mapping[str, Sequence[TrainedTurn | None]]
"""Name of a rollout -> what the trainer computed for each of its turns; None: unknown."""


def importance_ratios(passes: Sequence[PolicyPass]) -> Floats:
    """[A] probability of each trained token before a step, over that with which it was sampled.

    Ratios that are not finite are left out: no histogram takes them.

    Args:
        passes: the passes of the step.
    """
    known = [
        (logprobs, sample.logprobs)
        for one in passes
        for sample, logprobs in zip(one.samples, one.found.logprobs, strict=False)
        if len(logprobs) == len(sample.logprobs)
    ]
    current = np.concatenate([np.zeros(0, np.float32), *(logprobs for logprobs, _ in known)])
    behaviour = np.fromiter(chain.from_iterable(logprobs for _, logprobs in known), np.float32)
    ratios = np.exp(log_ratio(np, current, behaviour))
    return ratios[np.isfinite(ratios)]


def trained_turns(
    passes: Sequence[PolicyPass], groups: Sequence[Group], episodes: Sequence[Episode]
) -> TrainedTurns:
    """What a step computed for the turns of some of its plays, spawned ones included.

    Args:
        passes: the passes of the step.
        groups: what it was trained on.
        episodes: some of their plays.
    """
    why: dict[str, str] = {}
    for group in groups:
        why.update(group.left_out)
    rollouts: dict[str, Rollout] = {}
    for episode in with_children(episodes):
        for rollout in episode.rollouts:
            if rollout.policy and rollout.turns:
                name = episode.rollout_name(rollout.role)
                rollouts[name] = rollout
                if episode.error or episode.void:
                    why[name] = episode.failure or "void"
    members: defaultdict[str, list[_Member]] = defaultdict(list)
    for one in passes:
        indices = [at for at, sample in enumerate(one.samples) if sample.rollout in rollouts]
        for index, marks in zip(indices, _marks(one, indices), strict=True):
            members[one.samples[index].rollout].append(_Member(one, index, *marks))
    return {
        name: _of_rollout(rollout, members[name], why.get(name))
        for name, rollout in rollouts.items()
    }


class _Member(NamedTuple):
    """A sample of a rollout."""

    one: PolicyPass
    place: int  # of the sample in its pass
    clipped: NDArray[np.bool_]  # [A] True where the loss clipped a token
    masked: NDArray[np.bool_]  # [A] True where a correction dropped it


def _of_rollout(
    rollout: Rollout, members: list[_Member], why: str | None
) -> list[TrainedTurn | None]:
    """What is known of each turn.

    Args:
        rollout: the turns.
        members: its samples.
        why: why it has other turns; None: unknown.
    """
    turns: list[TrainedTurn | None] = [TrainedTurn(reason=why) if why else None] * len(
        rollout.turns
    )
    for run in conversations(rollout.turns):
        completions = [rollout.turns[index].completion for index in run]
        tokens = completions[-1].prompt_ids + completions[-1].token_ids
        lengths = [len(completion.token_ids) for completion in completions]
        for place, member in enumerate(members):
            sample = member.one.samples[member.place]
            if sample.token_ids == tokens and len(sample.positions) == sum(lengths):
                del members[place]
                found = _of_sample(member, lengths)
                for at, turn in zip(run, found, strict=True):
                    turns[at] = turn
                break
    return turns


def _of_sample(member: _Member, lengths: Sequence[int]) -> Iterator[TrainedTurn]:
    """The turns of a sample, which have so many tokens each."""
    one, index, clipped, masked = member
    sample, logprobs = one.samples[index], one.found.logprobs[index]
    entropies = one.found.entropies[index] if one.found.entropies else logprobs[:0]
    end = 0
    for length in lengths:
        part = slice(end, end + length)
        end += length
        yield TrainedTurn(
            reason="too_long" if one.too_long(sample) else one.reason,
            version=one.version,
            advantage=sample.advantages[end - 1] if length else None,
            logprobs=_exact(logprobs[part]),
            entropies=_exact(entropies[part]),
            clipped=np.flatnonzero(clipped[part]).tolist(),
            masked=np.flatnonzero(masked[part]).tolist(),
        )


def _marks(
    one: PolicyPass, indices: Sequence[int]
) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """[S][A] where the loss clipped a token of a sample, and where a correction dropped it.

    Both are computed again from the log-probabilities of the step, in float32 as there.

    Args:
        one: the pass.
        indices: S of its samples.
    """
    objective, spec = one.objective, LOSSES[one.objective.loss]
    lengths = [len(one.found.logprobs[index]) for index in indices]
    shape = (4, len(indices), max(lengths, default=0))
    padded = np.zeros(shape, np.float32)
    for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
        sample = one.samples[index]
        for array, values in zip(
            padded, (one.found.logprobs[index], sample.logprobs, sample.advantages), strict=False
        ):
            array[row, :length] = values[:length]
        padded[3, row, :length] = 1.0
    current, behaviour, advantage, mask = padded
    clipped: Any = np.zeros(shape[1:], np.bool_)
    masked: Any = clipped
    if spec.scope != "group" and padded.size:  # losses of whole groups clip no token
        anchor = behaviour if objective.anchor == "behaviour" else current
        tokens = ChosenTokens(np, objective.clip_range, current, current, anchor, advantage, mask)
        log_rho = log_ratio(np, current, behaviour)
        clipped = spec.loss(tokens)[1] > 0
        masked = correct(np, log_rho, mask, icepop=objective.icepop, weighted=False)[1] > 0
    return [(clipped[row, :n], masked[row, :n]) for row, n in enumerate(lengths)]


def _exact(values: Floats) -> list[float]:
    """The shortest decimal numbers that are these float32 values; none if JSON has not all."""
    finite = np.isfinite(values).all()
    return [float(f"{value:.9g}") for value in values.tolist()] if finite else []
