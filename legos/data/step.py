"""What crosses the seam between the trainer and a backend in one optimiser step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legos.errors import ConfigError

__all__ = ["PassResult", "Update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What the forward and backward pass over all samples of a step found; S samples."""

    loss: float
    sums: tuple[float, ...]  # of ``legos.losses.metrics.SUMS``, over all tokens
    grad_norm: float  # of all gradients together, before any scaling
    logprobs: Sequence[NDArray[np.float32]]
    """[S][A] nats of each sample's chosen tokens before the step; empty where it was left out."""
    row_limit: int | None = None
    """Tokens; samples with more before their last chosen one did not fit into memory and were left
    out. None: all fitted."""
    peak_bytes: int | None = None  # held by the device at the most; None: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How the gradients of a step change the policy."""

    learning_rate: float
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm
    ema_decay: float | None = None
    """Share of its past that the EMA of the policy keeps; None: it is the policy itself."""
    kl_refresh_steps: int | None = None
    """After every so many updates the reference becomes the policy; None: never."""

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ConfigError: naming the field and the value.
        """
        if not 0 <= self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {self.learning_rate}; expected a number >= 0")
        if not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm is {self.max_grad_norm}; expected more than 0")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ConfigError(f"ema_decay is {self.ema_decay}; expected 0 or more, below 1")
        if self.kl_refresh_steps is not None and self.kl_refresh_steps < 1:
            raise ConfigError(
                f"kl_refresh_steps is {self.kl_refresh_steps}; expected at least 1 update"
            )
