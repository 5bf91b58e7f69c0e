"""Turn episodes into samples: assign credit per turn, and count every token."""

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from msgspec.structs import replace

from legos.credit.means import step_metrics, with_children
from legos.credit.merging import samples_of_rollout
from legos.credit.returns import trained
from legos.errors import ArenaError, RecordError, user_code
from legos.protocols import CreditAssigner
from legos.records.episode import Episode, Rollout
from legos.records.group import Group
from legos.records.names import adapter_name
from legos.records.sample import Sample
from legos.records.task_ids import check_task_ids

logger = logging.getLogger(__name__)


def with_samples(group: Group, episodes: Sequence[Episode], credit: CreditAssigner) -> Group:
    """Make the samples of a group's episodes, children included, and count every token.

    Args:
        group: the group as it was planned.
        episodes: its episodes, which are compared with each other, task by task.
        credit: turns their rewards into advantages.

    Raises:
        ArenaError: the credit rule failed, returned no advantage for a trained turn, or would
            compare plays of different tasks.
    """
    flat = list(with_children(episodes))
    played = [episode for episode in flat if not episode.error and not episode.void]
    samples: list[Sample] = []
    discarded: Counter[str] = Counter()
    breaks = 0
    left_out: dict[str, str] = {}
    complaints: list[str] = []
    alone = credit.singletons
    with user_code(f"credit rule {type(credit).__name__}"):
        names = _group_names(played, credit.scope(played))
        assigned = _assigned(credit, played)
    for episode, advantages, compared in zip(played, assigned, names, strict=True):
        for rollout in episode.rollouts:
            if not rollout.policy or not rollout.turns:
                continue
            reason = why = _untrainable(rollout)
            name = episode.rollout_name(rollout.role)
            try:
                if reason is None:
                    given = _per_turn(advantages, rollout, credit)
                    made = samples_of_rollout(rollout, given, group=compared, name=name)
                    samples += made
                    breaks += len(made) - 1
            except RecordError as error:  # invalid data of an endpoint or arena is counted
                reason, why = "invalid", f"invalid, {error}"
            if reason is not None:
                discarded[reason] += rollout.num_tokens
                left_out[name] = reason
                complaints.append(f"rollout {name} is discarded: {why}")
    if complaints:
        logger.warning("%s (%d such rollouts in these plays)", complaints[0], len(complaints))
    metrics, weights = step_metrics(flat, breaks)
    metrics["credit/singletons"] = float(credit.singletons - alone)
    for episode in flat:
        if episode.error or episode.void:
            tokens = sum(r.num_tokens for r in episode.rollouts if r.policy)
            discarded[episode.failure or "void"] += tokens
    generated = sum(episode.num_tokens for episode in episodes)
    metrics["arena/generated_tokens"] = float(generated)
    return replace(
        group,
        samples=tuple(samples),
        episodes=tuple(episodes),
        tokens_generated=generated,
        tokens_discarded=dict(discarded),
        metrics=metrics,
        weights=weights,
        left_out=left_out,
    )


def _assigned(
    credit: CreditAssigner, played: Sequence[Episode]
) -> Sequence[Mapping[str, Sequence[float]]]:
    """The result of a credit rule, one mapping per play.

    Raises:
        ArenaError: the rule returned another number of mappings.
    """
    assigned = list(credit.assign(played))
    if len(assigned) != len(played):
        raise ArenaError(
            f"credit rule {type(credit).__name__} gave {len(assigned)} mappings for {len(played)} "
            "plays; assign(episodes) returns one for each of them, in their order"
        )
    return assigned


def _group_names(episodes: Sequence[Episode], scopes: Sequence[Hashable]) -> list[str]:
    """[E] name of the group of each episode: its arena, its task, and its scope unless it is None.

    Args:
        episodes: [E] episodes, children included; those with a trained seat are compared.
        scopes: [E] keys; a rule compares only episodes with equal ones.

    Raises:
        ArenaError: plays of different tasks that share an id would be compared; the message gives
            the id and both data.
    """
    try:
        compared = (pair for pair in zip(scopes, episodes, strict=True) if trained(pair[1]))
        check_task_ids(((at, episode.arena), episode.task) for at, episode in compared)
    except ArenaError as error:
        error.add_note("credit 'hierarchical' compares only the spawned plays of one parent")
        raise
    named: dict[Hashable, str] = {None: ""}
    for scope in scopes:
        named.setdefault(scope, f"/{episodes[0].seed}.{len(named)}")
    return [f"{e.arena}/{e.task.id}{named[at]}" for e, at in zip(episodes, scopes, strict=True)]


def _per_turn(
    advantages: Mapping[str, Sequence[float]], rollout: Rollout, credit: CreditAssigner
) -> list[float]:
    """A rollout's advantages as Python floats.

    Raises:
        ArenaError: there is not exactly one number for each of its turns.
    """
    try:
        values = [float(advantage) for advantage in advantages[rollout.role]]
    except (LookupError, TypeError, ValueError, OverflowError):
        values = None
    if values is None or len(values) != len(rollout.turns):
        raise ArenaError(
            f"credit rule {type(credit).__name__} gave {advantages!r} for a play in which "
            f"{rollout.role!r} had {len(rollout.turns)} turns; expected a mapping from each "
            "trained role to one number per turn, as legos.CreditAssigner says"
        )
    return values


def _untrainable(rollout: Rollout) -> str | None:
    """The reason why a rollout's completions cannot be trained on, or None."""
    completions = [turn.completion for turn in rollout.turns]
    if any(adapter_name(one.adapter) != rollout.policy for one in completions):
        return "wrong_adapter"
    if any(one.filtered for one in completions):
        return "sampling_filters"
    return None if all(one.trainable for one in completions) else "no_logprobs"
