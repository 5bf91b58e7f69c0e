"""The loss of one batch: policy term, divergences and entropy, summed with step-wide weights."""

from typing import Any

from legos.data.batch import Batch
from legos.losses.objective import Objective
from legos.losses.places import Places, chosen_logprobs, entropy, exact_kl, place_logprobs
from legos.losses.policy import log_ratio, policy_loss

__all__ = ["SUMS", "BatchArrays", "total_loss"]

# Sums over chosen tokens that `total_loss` returns beside the loss, in this order.
SUMS = (
    "tokens",
    "clipped",
    "kl",
    "ema_kl",
    "entropy",
    "k3",
    "ratio",
    "ratio_squared",
    "logprob_gap",
)


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

    Returns:
        The loss (scalar) and [len(SUMS)] sums for the metrics, which carry no gradient of interest.
    """
    places, mask, weight = arrays.places, arrays.mask, arrays.weight
    policy = place_logprobs(xp, logits, places)
    logprob = chosen_logprobs(policy[0], arrays.sample_place, arrays.target)
    gap = log_ratio(xp, logprob, arrays.behaviour_logprob)
    per_token, cut = policy_loss(
        xp,
        logprob,
        objective,
        behaviour_logprob=arrays.behaviour_logprob,
        advantage=arrays.advantage,
        mask=mask,
    )
    nothing = xp.zeros_like(mask)
    divergences: list[Any] = []
    for other_logits, coefficient in (
        (reference, objective.kl_coef),
        (average, objective.ema_kl_coef),
    ):
        if other_logits is None:
            divergences.append(nothing)
            continue
        other = place_logprobs(xp, other_logits, places)
        if objective.kl_estimator == "exact":
            kl = exact_kl(xp, policy, other, places)[arrays.sample_place]
            per_token = per_token + coefficient * kl
        else:
            d = logprob - chosen_logprobs(other[0], arrays.sample_place, arrays.target)
            per_token = per_token + coefficient * 0.5 * d * d
            kl = d
        divergences.append(kl)
    spread = entropy(xp, policy[0], policy[1], places)[arrays.sample_place]
    if objective.entropy_coef:
        per_token = per_token - objective.entropy_coef * spread
    ratio = xp.exp(gap)
    terms = (
        mask,
        cut,
        *divergences,
        spread,
        xp.exp(-gap) - 1.0 + gap,
        ratio,
        ratio * ratio,
        xp.abs(gap),
    )
    sums = xp.stack([xp.sum(term * mask) for term in terms])
    return xp.sum(per_token * weight), sums
