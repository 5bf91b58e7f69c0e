"""The log-probabilities of distributions that are sampled from."""

from typing import Any

import numpy as np

from legos.mlx.generate.sampling.draw import Distributions

__all__ = ["logprobs_of"]


@np.errstate(invalid="ignore", divide="ignore")
def logprobs_of(xp: Any, made: Distributions) -> Any:
    """[D, V] nats; minus infinity for tokens that cannot be drawn."""
    logits = made.logits
    if made.greedy is not None:
        best = xp.argmax(logits, axis=1)[:, None] == xp.arange(logits.shape[1])[None, :]
        logits = xp.where(xp.array(made.greedy) & ~best, -np.inf, logits)
    scaled = logits / xp.array(made.temperatures)
    top = xp.max(scaled, axis=1, keepdims=True)
    return scaled - (top + xp.log(xp.sum(xp.exp(scaled - top), axis=1, keepdims=True)))
