"""The policy loss of each chosen token, for the loss that the objective selects.

``xp`` is ``numpy``, ``mlx.core`` or a module with the same functions; arrays are float32 (float64
in the finite-difference tests). S samples, A chosen tokens of the longest sample.
"""

from typing import Any

from legos.losses.objective import Objective
from legos.losses.ratio import detach, log_ratio
from legos.losses.sequence import gmpo, gspo
from legos.losses.token import cispo, clipped_surrogate, dppo, reinforce, sapo

__all__ = ["policy_loss"]


def policy_loss(
    xp: Any,
    logprob: Any,
    objective: Objective,
    *,
    behaviour_logprob: Any,
    advantage: Any,
    mask: Any,
    frozen: Any = None,
) -> tuple[Any, Any]:
    """Compute the policy loss of ``objective``, with ratios to its anchor.

    The anchor is the policy that sampled (behaviour), or the policy before this optimiser step
    (proximal). One step makes one update, so the proximal policy is the current policy without
    gradient: it needs no extra forward pass, and every ratio is 1.

    Args:
        xp: array namespace.
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        objective: the loss, its anchor and its clip range.
        behaviour_logprob: [S, A] log-probabilities (nats) under the policy that sampled.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        frozen: [S, A] ``logprob`` without gradient; None: detached from ``logprob``. Finite
            differences must give it, because there it must stay constant.

    Returns:
        [S, A] loss per token, and [S, A] 1.0 where the loss clipped the token; both 0 where masked.
    """
    frozen = detach(xp, logprob) if frozen is None else frozen
    anchor = behaviour_logprob if objective.anchor == "behaviour" else frozen
    name = objective.policy_loss
    low, high = objective.clip_range
    if name == "reinforce":
        loss, cut = reinforce(xp, logprob, advantage=advantage)
    elif name == "cispo":
        loss, cut = cispo(xp, logprob, frozen, anchor, advantage=advantage, low=low, high=high)
    elif name in ("dppo_tv", "dppo_kl"):
        kl = name == "dppo_kl"
        loss, cut = dppo(
            xp, logprob, frozen, anchor, advantage=advantage, low=low, high=high, kl=kl
        )
    else:
        log_x, still = (log_ratio(xp, each, anchor) for each in (logprob, frozen))
        loss, cut = _of_ratio(xp, log_x, still, objective, advantage=advantage, mask=mask)
    return loss * mask, cut * mask


def _of_ratio(
    xp: Any, log_x: Any, still: Any, objective: Objective, *, advantage: Any, mask: Any
) -> tuple[Any, Any]:
    """The losses that depend only on the ratio; ``still`` is ``log_x`` without gradient."""
    name, (low, high) = objective.policy_loss, objective.clip_range
    if name == "sapo":
        tau, negative = objective.sapo_taus
        return sapo(xp, log_x, advantage=advantage, tau=tau, tau_negative=negative)
    if name == "gmpo":
        return gmpo(xp, log_x, still, advantage=advantage, mask=mask, low=low, high=high)
    dual = objective.dual_clip
    if name == "gspo":
        return gspo(
            xp, log_x, still, advantage=advantage, mask=mask, low=low, high=high, dual_clip=dual
        )
    return clipped_surrogate(xp, log_x, advantage=advantage, low=low, high=high, dual_clip=dual)
