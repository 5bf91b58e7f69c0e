"""What benches of generation time: one engine on one model, and bare loops on the same tree."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from legos.bench.turns import seconds_of
from legos.clients.submit import submit_all
from legos.fakes.records import random_adapter
from legos.records.limits import EngineLimits
from legos.records.request import Request
from legos.weights.adapter import Adapter
from legos.wiring.device import Row, device_checks
from legos.wiring.model import apply_lora, load_model


class EngineBench:
    """One engine of a model, alone in the process."""

    def __init__(self, folder: Path, limits: EngineLimits, *, rank: int = 8) -> None:
        self._model = load_model(folder)
        self._max_rows = limits.max_rows
        self.engine = self._model.make_engine(limits)
        self.checks = device_checks(self._model)
        apply_lora(self._model, rank=rank, alpha=2.0 * rank, layers=1000, head=True)

    def close(self) -> None:
        """Close the engine and release the model."""
        self.engine.close()
        self._model.close()

    def prompts(self, count: int, length: int, *, seed: int = 0) -> list[Row]:
        """Random prompts."""
        rng = np.random.default_rng(seed)
        ids = rng.integers(6, 90, size=(count, length))
        return [tuple(row) for row in ids.tolist()]

    def adapter(self, name: str, *, version: int = 1) -> Adapter:
        """Random LoRA arrays on every linear module."""
        return random_adapter(self._model.base_adapter(), name=name, version=version, size=0.02)

    def run(self, requests: Sequence[Request], beats: list[float] | None = None) -> float:
        """Seconds until all requests are answered.

        Args:
            requests: submitted at once.
            beats: gets the time of every token of the streamed ones.
        """
        on_progress = None if beats is None else lambda: beats.append(time.perf_counter())
        return seconds_of(
            lambda: submit_all(self.engine, requests, on_progress=on_progress).result()
        )

    def bare(self, prompts: Sequence[Row], *, max_tokens: int, lora: bool = False) -> float:
        """Seconds of a bare BatchGenerator on the same prompts, with or without LoRA."""
        return self.checks.bare_generation(
            self.engine, prompts, max_tokens=max_tokens, rows=self._max_rows, lora=lora
        )
