"""Log-sum-exp and log-softmax, over any array namespace."""

from typing import Any

from legos.losses.ratio import detach


def logsumexp(xp: Any, x: Any) -> Any:
    """[..., 1] log of the sum of exponentials over the last axis.

    The largest value only shifts the sum, so no gradient is computed through it.
    """
    top = detach(xp, xp.max(x, axis=-1, keepdims=True))
    return top + xp.log(xp.sum(xp.exp(x - top), axis=-1, keepdims=True))


def log_softmax(xp: Any, x: Any) -> Any:
    """[..., V] log-probabilities (nats) of [..., V] logits."""
    return x - logsumexp(xp, x)
