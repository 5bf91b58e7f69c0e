"""Records that the trainer and a backend exchange: settings, pass results and updates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from legos.records.names import POLICY

MICRO_BATCH_TOKENS = 4096
Stop = Callable[[], bool]
"""Whether a computation of several passes is to end before the next one; asked on any thread."""


def never() -> bool:
    """The ``Stop`` of what always computes all of its passes."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Settings of a backend on any device."""

    policies: tuple[str, ...] = (POLICY,)  # adapters that are trained, each separately
    betas: tuple[float, float] = (0.9, 0.95)  # decay rates of Adam's moments
    micro_batch_tokens: int | None = None  # padded tokens of a pass, shared prefixes once; None:
    # by the device, at most 4096
    gradient_checkpointing: bool = False  # recompute layers in the backward pass, to save memory
    reference: Path | None = None  # adapter of the first KL reference; None: the first policy
    restored: bool = False  # True: a checkpoint, which holds the reference, is restored next
    memory_limit_bytes: int | None = None  # memory that may be used; None: most of the device's
    pass_limit_s: float | None = None  # seconds that a pass may take; None: no limit
    num_vocabulary: int | None = None  # token ids below it can be sampled; None: all of the head
    report: Callable[[str], None] | None = None  # gets the memory plan; None: it is logged


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """The result of the forward and backward pass over all S samples of a step."""

    loss: float
    sums: tuple[float, ...]  # totals of ``legos.losses.metrics.SUMS`` over all tokens
    grad_norm: float  # global gradient norm, before any scaling
    logprobs: Sequence[NDArray[np.float32]]  # [S][A] nats before the step; empty if left out
    entropies: Sequence[NDArray[np.float32]] = ()  # [S][A] nats, in the same way; (): not reported
    row_limit: int | None = None  # tokens; longer samples did not fit into memory; None: all did
    peak_bytes: int | None = None  # peak memory of the device, bytes; None: not measured
    pass_s: float | None = None  # seconds of the longest pass; None: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How the gradients of a step change the policy."""

    learning_rate: float
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm
    ema_decay: float | None = None  # share of its past that the EMA keeps; None: the policy itself
    kl_refresh_steps: int | None = None  # updates between refreshes of the reference; None: never
