"""The loss of one batch: the weighted sum of policy losses, KL terms and entropy bonuses."""

from collections.abc import Mapping
from typing import Any

from legos.errors import TrainerError
from legos.losses.corrections import correct
from legos.losses.kl import KlEstimator, loss_kl
from legos.losses.metrics import token_sums
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES, ChosenTokens, linear
from legos.losses.positions import Positions, entropy, exact_kl, position_logprobs
from legos.losses.ratio import detach, log_ratio
from legos.records.batch import Batch

Terms = Mapping[str, Any]
"""Name -> [S, A] values of the chosen tokens; ``token_loss`` lists them."""


class BatchArrays:
    """The fields of a batch as arrays of one namespace, made once per batch."""

    def __init__(self, xp: Any, batch: Batch) -> None:
        self.positions = Positions(xp, batch)
        self.logit_index = xp.array(batch.logit_index)
        self.target = xp.array(batch.target)
        self.behaviour_logprob = xp.array(batch.behaviour_logprob)
        self.advantage = xp.array(batch.advantage)
        self.weight = xp.array(batch.weight)
        given = batch.reference_logprob
        self.reference_logprob = None if given is None else xp.array(given)
        self.mask = xp.array(batch.mask.astype(batch.weight.dtype))


def token_terms(
    xp: Any, logits: Any, others: Terms, arrays: BatchArrays, objective: Objective
) -> dict[str, Any]:
    """Compute the terms of ``token_loss`` for each token, from the logits of its position.

    Args:
        xp: array namespace.
        logits: [P, V] float32 logits of the policy being trained.
        others: "reference" and "ema" -> [P, V] logits, where the objective uses them.
        arrays: the batch.
        objective: the objective to minimise.

    Returns:
        Name -> [S, A] terms, as ``token_loss`` takes them.
    """
    positions, at = arrays.positions, arrays.logit_index
    policy = position_logprobs(xp, logits, positions)
    every, legal = policy
    if not objective.entropy_coef:  # it is only reported, and keeps nothing for a backward pass
        every, legal = detach(xp, every), None if legal is None else detach(xp, legal)
    found: dict[str, Any] = {
        "logprob": policy[0][at, arrays.target],
        "entropy": entropy(xp, every, legal, positions)[at],
    }
    for name, other_logits in others.items():
        other = position_logprobs(xp, other_logits, positions)
        if objective.kl_estimator == "exact":
            found[name] = exact_kl(xp, policy, other, positions)[at]
        else:
            found[name] = other[0][at, arrays.target]
    return found


def token_loss(
    xp: Any, terms: Terms, arrays: BatchArrays, objective: Objective, *, frozen: Any = None
) -> tuple[Any, Any]:
    """Sum over tokens of weight * (policy loss + divergences - entropy bonus).

    Weights are normalised over the whole optimiser step and 0 where masked, so losses and gradients
    of its batches add up for any split.

    Args:
        xp: array namespace.
        terms: "logprob": [S, A] log-probabilities (nats) under the policy being trained. "entropy":
            [S, A] entropy (nats) at each token's position. "reference" and "ema",
            where their coefficients are not 0: [S, A] log-probabilities of the chosen tokens or,
            where ``kl_estimator`` is "exact", divergences with their gradient.
        arrays: the batch; the fields of its logit positions are not used.
        objective: the objective to minimise.
        frozen: see ``policy_loss``.

    Returns:
        The loss (scalar), and [len(SUMS)] sums for the metrics, whose gradient is not used.
    """
    logprob, token_entropy = terms["logprob"], terms["entropy"]
    mask = arrays.mask
    frozen = detach(xp, logprob) if frozen is None else frozen
    gap = log_ratio(xp, logprob, arrays.behaviour_logprob)
    extra, divergences = _divergences(xp, terms, arrays, objective, gap=gap)
    per_token, cut = policy_loss(xp, logprob, objective, arrays, frozen=frozen)
    masked = None
    weighted = objective.anchor == "proximal"
    if weighted or objective.icepop:
        log_rho = log_ratio(xp, frozen, arrays.behaviour_logprob)
        factor, masked = correct(xp, log_rho, mask, icepop=objective.icepop, weighted=weighted)
        per_token = factor * per_token
    if extra is not None:
        per_token = per_token + extra
    if objective.entropy_coef:
        per_token = per_token - objective.entropy_coef * token_entropy
    sums = token_sums(
        xp,
        gap,
        mask=mask,
        cut=cut,
        masked=masked,
        divergences=divergences,
        entropy=token_entropy,
    )
    return xp.sum(per_token * arrays.weight), sums


def policy_loss(
    xp: Any,
    logprob: Any,
    objective: Objective,
    arrays: BatchArrays,
    *,
    frozen: Any = None,
    of_group: bool = False,
) -> tuple[Any, Any]:
    """Compute the policy loss of ``objective``, with ratios to its anchor.

    The anchor is the policy that sampled (behaviour), or the policy before this optimiser step
    (proximal). One step makes one update, so the proximal policy is the current policy without
    gradient: it needs no extra forward pass, and every ratio is 1.

    In the passes of a step, advantages of a loss of groups are slopes of ``legos.device.groups``,
    and the loss is linear: its value is 0, and its gradient that of the groups.

    Args:
        xp: array namespace.
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        objective: the loss, its anchor and its clip range.
        arrays: the batch, of which only chosen tokens are read.
        frozen: [S, A] ``logprob`` without gradient; None: detached from ``logprob``. Finite
            differences must give it, because there it must stay constant.
        of_group: whether the samples are those of one group, with their own advantages.

    Returns:
        [S, A] loss per token, and [S, A] 1.0 where the loss clipped the token; both 0 where masked.
    """
    frozen = detach(xp, logprob) if frozen is None else frozen
    anchor = arrays.behaviour_logprob if objective.anchor == "behaviour" else frozen
    tokens = ChosenTokens(
        xp, objective.clip_range, logprob, frozen, anchor, arrays.advantage, arrays.mask
    )
    spec = LOSSES[objective.loss]
    loss, cut = (linear if spec.scope == "group" and not of_group else spec.loss)(tokens)
    return loss * arrays.mask, cut * arrays.mask


def _reference(xp: Any, given: Any, computed: Any, estimator: KlEstimator) -> Any:
    """[S, A] the samples' own reference log-probabilities; the computed ones where they have none.

    Raises:
        TrainerError: the divergence is exact, which needs whole distributions.
    """
    if given is None:
        return computed
    if estimator == "exact":
        raise TrainerError(
            "kl_estimator 'exact' compares whole distributions, and samples bring reference "
            "log-probabilities of their own tokens alone; choose k2 or k3"
        )
    return given if computed is None else xp.where(xp.isnan(given), computed, given)


def _divergences(
    xp: Any, terms: Terms, arrays: BatchArrays, objective: Objective, *, gap: Any
) -> tuple[Any, list[Any]]:
    """[S, A] KL terms of the loss, or None, and values to report."""
    extra = None
    reported: list[Any] = []
    estimator = objective.kl_estimator
    for name, coefficient in (("reference", objective.kl_coef), ("ema", objective.ema_kl_coef)):
        other = terms.get(name)
        if name == "reference" and coefficient:
            other = _reference(xp, arrays.reference_logprob, other, estimator)
        if other is None:
            reported.append(xp.zeros_like(arrays.mask))
            continue
        if estimator == "exact":
            term, nats = other, other
        else:
            term, nats = loss_kl(xp, estimator, terms["logprob"], other, gap)
        extra = coefficient * term if extra is None else extra + coefficient * term
        reported.append(nats)
    return extra, reported
