"""Optimiser steps of the kit, and bare updates on the same model, with their time and memory."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legos.device import ModelHandle
from legos.fakes.records import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.records.step import BackendConfig, Update
from legos.wiring.device import Split
from legos.wiring.model import apply_lora


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time and memory of one update."""

    seconds: float
    peak_bytes: int  # peak of the memory allocated in addition, bytes


class StepBench:
    """The kit's step and bare updates on one model."""

    def __init__(self, model: ModelHandle, baseline: Any, **settings: Any) -> None:
        """Put LoRA on all layers of a model.

        Args:
            model: the model, without LoRA.
            baseline: bare updates on this model and their memory, as ``device_checks`` gives.
            settings: settings of ``BackendConfig``.
        """
        apply_lora(model, rank=8, layers=1000, head=False)
        self._model = model
        self._backend = model.make_backend(BackendConfig(**settings))
        self._baseline = baseline

    def step(self, rows: Sequence[Split]) -> Cost:
        """One optimiser step, from samples to the new adapter."""
        samples = [
            make_sample(
                tokens, positions=range(prompt, len(tokens)), advantages=1.0 - 2.0 * (number % 2)
            )
            for number, (tokens, prompt) in enumerate(rows)
        ]

        def step() -> None:
            weights = normalisation_weights(samples, "token")
            self._backend.forward_backward(samples, weights, Objective()).result()
            self._backend.optim_step(Update(learning_rate=1e-6)).result()

        return self._measured(step)

    def forward(self, rows: Sequence[Split]) -> Cost:
        """One forward pass of each row alone, all of its logits included."""
        return self._measured(lambda: [self._model(tokens) for tokens, _ in rows])

    def bare(self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0) -> Cost:
        """One bare update, its padding done before the clock starts."""
        return self._measured(self._baseline.bare_update(blocks, pad_to=pad_to))

    def _measured(self, call: Callable[[], object]) -> Cost:
        """Run a call whose arrays are evaluated when it returns."""
        started = time.perf_counter()
        peak = self._baseline.peak_bytes(call)
        return Cost(seconds=time.perf_counter() - started, peak_bytes=peak)
