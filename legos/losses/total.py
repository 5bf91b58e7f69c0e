"""The loss of one batch: policy term, divergences and entropy, summed with step-wide weights."""

from typing import Any

from legos.data.batch import Batch
from legos.losses.corrections import correct
from legos.losses.kl import loss_kl, reward_kl
from legos.losses.metrics import SUMS, token_sums
from legos.losses.objective import Objective
from legos.losses.places import (
    Places,
    chosen_logprobs,
    entropy,
    exact_kl,
    place_logprobs,
    support_entropy,
)
from legos.losses.policy import policy_loss
from legos.losses.ratio import detach, log_ratio

__all__ = ["SUMS", "BatchArrays", "token_loss", "total_loss"]


class BatchArrays:
    """A batch's sample and place fields as arrays of one namespace, made once per batch."""

    def __init__(self, xp: Any, batch: Batch) -> None:
        self.places = Places(xp, batch)
        self.sample_place = xp.array(batch.sample_place)
        self.target = xp.array(batch.target)
        self.behaviour_logprob = xp.array(batch.behaviour_logprob)
        self.advantage = xp.array(batch.advantage)
        self.weight = xp.array(batch.weight)
        self.mask = xp.array(batch.mask.astype(batch.weight.dtype))


def total_loss(
    xp: Any,
    logits: Any,
    arrays: BatchArrays,
    objective: Objective,
    *,
    reference: Any = None,
    average: Any = None,
    frozen: Any = None,
) -> tuple[Any, Any]:
    """Sum over tokens of weight * (policy loss + divergences - entropy bonus).

    Weights are shares of the whole optimiser step and 0 where masked, so losses and gradients of
    its batches add up whatever the split.

    Args:
        xp: array namespace.
        logits: [P, V] float32 of the policy being trained.
        arrays: the batch.
        objective: what to minimise.
        reference: [P, V] logits of the model without LoRA, or None when ``kl_coef`` is 0.
        average: [P, V] logits of the averaged policy, or None when ``ema_kl_coef`` is 0.
        frozen: see ``policy_loss``.

    Returns:
        The loss (scalar) and [len(SUMS)] sums for the metrics, which carry no gradient of interest.
    """
    places = arrays.places
    policy = place_logprobs(xp, logits, places)
    logprob = chosen_logprobs(policy[0], arrays.sample_place, arrays.target)
    others: list[Any] = []
    for other_logits in (reference, average):
        if other_logits is None:
            others.append(None)
            continue
        other = place_logprobs(xp, other_logits, places)
        if objective.kl_estimator == "exact":
            others.append(exact_kl(xp, policy, other, places)[arrays.sample_place])
        else:
            others.append(chosen_logprobs(other[0], arrays.sample_place, arrays.target))
    spread = entropy if objective.entropy_over == "legal" else support_entropy
    return token_loss(
        xp,
        logprob,
        arrays,
        objective,
        others=(others[0], others[1]),
        spread=spread(xp, policy[0], policy[1], places)[arrays.sample_place],
        frozen=frozen,
    )


def token_loss(
    xp: Any,
    logprob: Any,
    arrays: BatchArrays,
    objective: Objective,
    *,
    others: tuple[Any, Any],
    spread: Any,
    frozen: Any = None,
) -> tuple[Any, Any]:
    """``total_loss`` from what is known of the chosen tokens alone, without any logits.

    Args:
        xp: array namespace.
        logprob: [S, A] nats under the policy being trained.
        arrays: the batch.
        objective: what to minimise.
        others: for the reference and the average, [S, A] log-probabilities of the chosen tokens
            or, where ``kl_estimator`` is "exact", [S, A] divergences with their gradient; None
            where the coefficient is 0.
        spread: [S, A] entropy at each token's place.
        frozen: see ``policy_loss``.

    Returns:
        As ``total_loss``.
    """
    mask = arrays.mask
    frozen = detach(xp, logprob) if frozen is None else frozen
    gap = log_ratio(xp, logprob, arrays.behaviour_logprob)
    advantage, extra, divergences = _divergences(
        xp, logprob, arrays, objective, others=others, frozen=frozen, gap=gap
    )
    of_samples = {"behaviour_logprob": arrays.behaviour_logprob, "mask": mask}
    per_token, cut = policy_loss(
        xp, logprob, objective, advantage=advantage, frozen=frozen, **of_samples
    )
    masked = None
    weighted = objective.anchor == "proximal"
    if weighted or objective.corrections.masks:
        factor, masked = correct(
            xp,
            objective.corrections,
            frozen=frozen,
            advantage=advantage,
            weighted=weighted,
            **of_samples,
        )
        per_token = factor * per_token
    if extra is not None:
        per_token = per_token + extra
    if objective.entropy_coef:
        per_token = per_token - objective.entropy_coef * spread
    sums = token_sums(
        xp,
        gap,
        mask=mask,
        advantage=advantage,
        cut=cut,
        masked=masked,
        divergences=divergences,
        spread=spread,
    )
    return xp.sum(per_token * arrays.weight), sums


def _divergences(
    xp: Any,
    logprob: Any,
    arrays: BatchArrays,
    objective: Objective,
    *,
    others: tuple[Any, Any],
    frozen: Any,
    gap: Any,
) -> tuple[Any, Any, list[Any]]:
    """Advantages less the penalties, [S, A] terms of the loss or None, and what is reported."""
    advantage, extra = arrays.advantage, None
    reported: list[Any] = []
    estimator = objective.kl_estimator
    for other, coefficient in zip(others, (objective.kl_coef, objective.ema_kl_coef), strict=True):
        if other is None:
            reported.append(xp.zeros_like(arrays.mask))
            continue
        if objective.kl_in == "reward":
            penalty, nats = reward_kl(xp, estimator, frozen, other)
            advantage = advantage - coefficient * penalty
        else:
            if estimator == "exact":
                term, nats = other, other
            else:
                term, nats = loss_kl(xp, estimator, logprob, other, gap)
            extra = coefficient * term if extra is None else extra + coefficient * term
        reported.append(nats)
    return advantage, extra, reported
