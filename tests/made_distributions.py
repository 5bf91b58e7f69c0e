"""The log-probabilities of distributions that are sampled from."""

from typing import Any

import numpy as np

from legos.mlx.generate.sampling.draw import Distributions

__all__ = ["logprobs_of"]


@np.errstate(invalid="ignore", divide="ignore")
def logprobs_of(xp: Any, made: Distributions) -> Any:
    """[D, V] nats; minus infinity for tokens of weight 0."""
    logprobs = made.scaled - (made.top + xp.log(made.total))
    return xp.where(made.weights == 0.0, -np.inf, logprobs)
