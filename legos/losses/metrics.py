"""Metrics of an optimiser step: sums over its tokens, and means computed from them.

Sums add up over batches, so the metrics do not depend on how a step was split.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

SKIPPED = ("non_finite", "clip_skip")  # the reasons of ``skip_reason``
# Sums over chosen tokens that `token_loss` returns with the loss, in this order.
SUMS = (
    "tokens",
    "clipped",
    "kl",
    "ema_kl",
    "entropy",
    "k3",
    "ratio",
    "ratio_spread",
    "logprob_gap",
    "error_factor",
    "masked",
)


def token_sums(
    xp: Any,
    gap: Any,
    *,
    mask: Any,
    cut: Any,
    masked: Any,
    divergences: Sequence[Any],
    entropy: Any,
) -> Any:
    """Compute the sums named in ``SUMS``; "ratio_spread" is that of (r - 1)^2.

    The sum of r^2 would not do: where all ratios are near 1, the variance is a small difference of
    two large sums, which float32 rounds away.

    Args:
        xp: array namespace.
        gap: [S, A] log pi - log mu, clamped.
        mask: [S, A] 1.0 where a token was chosen.
        cut: [S, A] 1.0 where the trust region of the loss clipped the token.
        masked: [S, A] 1.0 where a correction dropped the token; None where none is on.
        divergences: [S, A] KL divergence (nats) from the reference, and from the EMA.
        entropy: [S, A] nats.

    Returns:
        [len(SUMS)] sums.
    """
    ratio = xp.exp(gap)
    terms = (
        mask,
        cut,
        *divergences,
        entropy,
        ratio - 1.0 - gap,
        ratio,
        (ratio - 1.0) * (ratio - 1.0),
        xp.abs(gap),
        xp.exp(xp.abs(gap)),
        xp.zeros_like(mask) if masked is None else masked,
    )
    return xp.sum(xp.stack(terms) * mask, axis=(1, 2))


def step_metrics(loss: float, sums: Sequence[float], grad_norm: float) -> dict[str, float]:
    """Compute the means over a step's tokens.

    ``mismatch_k3`` is Schulman's estimate of KL(mu || pi), mean of r - 1 - log r with r = pi / mu.

    Args:
        loss: loss of the whole step.
        sums: [len(SUMS)] sums over all batches of the step.
        grad_norm: norm of the gradients before clipping.
    """
    total: dict[str, float] = dict(zip(SUMS, sums, strict=True))
    tokens = total["tokens"]
    mean = {name: value / tokens for name, value in total.items()}
    variance = max(mean["ratio_spread"] - (mean["ratio"] - 1.0) ** 2, 0.0)
    squared = mean["ratio"] ** 2
    whole = squared + variance
    return {
        "loss": loss,
        "clip_fraction": mean["clipped"],
        "mask_fraction": mean["masked"],
        "kl_divergence": mean["kl"],
        "ema_kl_divergence": mean["ema_kl"],
        "entropy": mean["entropy"],
        "mismatch_k3": mean["k3"],
        "logprob_gap": mean["logprob_gap"],
        "error_factor": mean["error_factor"],
        "ratio_mean": mean["ratio"],
        "ratio_std": variance**0.5,
        "effective_sample_share": squared / whole if whole else math.nan,
        "grad_norm": grad_norm,
    }


def skip_reason(metrics: Mapping[str, float], *, clip_skip_threshold: float) -> str | None:
    """Why a step must be skipped, or None.

    Args:
        metrics: metrics from ``step_metrics``.
        clip_skip_threshold: maximum fraction of clipped tokens.

    Returns:
        "non_finite" where the loss or the norm of the gradients is not a finite number,
        "clip_skip" where a larger fraction of the tokens was clipped.
    """
    if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
        return "non_finite"
    return "clip_skip" if metrics["clip_fraction"] > clip_skip_threshold else None
