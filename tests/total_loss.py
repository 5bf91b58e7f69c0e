"""The loss of a batch from the logits of its positions, in one piece."""

from types import SimpleNamespace
from typing import Any, cast

from legos.losses.objective import Objective
from legos.losses.total import BatchArrays, token_loss, token_terms

__all__ = ["chosen", "total_loss"]


def chosen(**arrays: Any) -> BatchArrays:
    """The [S, A] arrays of chosen tokens alone, by name, which policy losses read."""
    return cast("BatchArrays", SimpleNamespace(**arrays))


def total_loss(
    xp: Any,
    logits: Any,
    arrays: BatchArrays,
    objective: Objective,
    *,
    reference: Any = None,
    ema: Any = None,
    frozen: Any = None,
) -> tuple[Any, Any]:
    """Sum over tokens of weight * (policy loss + divergences - entropy bonus).

    Weights are normalised over the whole optimiser step and 0 where masked, so losses and gradients
    of its batches add up for any split.

    Args:
        xp: array namespace.
        logits: [P, V] float32 logits of the policy being trained.
        arrays: the batch.
        objective: the objective to minimise.
        reference: [P, V] logits of the reference, or None when ``kl_coef`` is 0.
        ema: [P, V] logits of the policy's EMA, or None when ``ema_kl_coef`` is 0.
        frozen: see ``policy_loss``.

    Returns:
        The loss (scalar), and [len(SUMS)] sums for the metrics, whose gradient is not used.
    """
    others = {"reference": reference, "ema": ema}
    given = {name: other for name, other in others.items() if other is not None}
    terms = token_terms(xp, logits, given, arrays, objective)
    return token_loss(xp, terms, arrays, objective, frozen=frozen)
