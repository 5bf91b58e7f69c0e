"""Records that the trainer and a backend exchange: settings, pass results and updates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from legos.data.names import POLICY
from legos.errors import ConfigError

__all__ = ["MICRO_BATCH_TOKENS", "BackendConfig", "MeasuredStep", "PassResult", "Update"]

MICRO_BATCH_TOKENS = 4096  # of one pass, unless set otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Settings of a backend on any device."""

    policies: tuple[str, ...] = (POLICY,)  # adapters that are trained, each separately
    betas: tuple[float, float] = (0.9, 0.95)  # decay rates of AdamW's moments
    weight_decay: float = 0.0  # AdamW's weight decay of the LoRA arrays
    micro_batch_tokens: int = MICRO_BATCH_TOKENS
    """Padded tokens of one forward and backward pass, shared prefixes counted once."""
    gradient_checkpointing: bool = False
    """Keep the inputs of layers alone and compute the rest again in the backward pass: less
    memory, about a third more time."""
    reference: Path | None = None
    """Folder of the adapter that ``kl_coef`` pulls to at first, of any rank, from then on in every
    checkpoint; None: the model without LoRA."""
    restored: bool = False
    """Whether a checkpoint is restored next, which holds the reference; False reads it at once."""
    memory_limit_bytes: int | None = None
    """What the device may hold at the most: less is computed at once to stay below it, and samples
    that do not fit alone are left out of their step. None: most of what the device has."""
    report: Callable[[str], None] | None = None
    """Gets the plan of the memory in one line, before the first step; None: it is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """The result of the forward and backward pass over all S samples of a step."""

    loss: float
    sums: tuple[float, ...]  # totals over all tokens of ``legos.losses.metrics.SUMS``
    grad_norm: float  # global gradient norm, before any scaling
    logprobs: Sequence[NDArray[np.float32]]
    """[S][A] nats of each sample's chosen tokens before the step; empty where it was left out."""
    row_limit: int | None = None
    """Tokens; samples with more before their last chosen one did not fit into memory and were left
    out. None: all fitted."""
    peak_bytes: int | None = None  # peak memory of the device, bytes; None: not measured


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
        """Check the ranges of the values.

        Raises:
            ConfigError: the message names the field and the value.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """The gradients of a step with its time and memory, to check a device."""

    gradients: NDArray[np.float64]  # [N] gradients of all LoRA arrays, concatenated
    seconds: float
    peak_bytes: int  # peak of the memory allocated in addition, bytes
    shared: bool  # whether rows shared prefixes
