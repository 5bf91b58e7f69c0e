"""What ``legos bench engine`` times: one engine on one model, and bare loops on the same tree."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from legos.data.limits import EngineLimits
from legos.data.request import Request
from legos.weights.adapter import Adapter, LoraShape
from legos.wiring.asking import submit_all
from legos.wiring.bare import Row, bare_seconds
from legos.wiring.model import load_model

__all__ = ["EngineBench"]


class EngineBench:
    """One engine of a model, alone in the process."""

    def __init__(self, folder: Path, limits: EngineLimits) -> None:
        self.model = load_model(str(folder))
        self.engine = self.model.make_engine(limits)
        self.max_rows = limits.max_rows

    def close(self) -> None:
        """End the engine and let go of the model."""
        self.engine.close()
        self.model.close()

    def prompts(self, count: int, length: int, *, seed: int = 0) -> list[Row]:
        """Random prompts."""
        rng = np.random.default_rng(seed)
        ids = rng.integers(6, 90, size=(count, length))
        return [tuple(row) for row in ids.tolist()]

    def adapter(self, name: str, *, rank: int = 8, version: int = 1) -> Adapter:
        """Random LoRA arrays on every linear module of every layer."""
        from legos.mlx.model.load import base_arrays

        weights = base_arrays(self.model.tree)
        rng = np.random.default_rng(sum(name.encode()) + version)
        arrays: dict[str, Any] = {}
        for key, array in weights.items():
            module, _, kind = key.rpartition(".")
            if kind == "weight" and array.ndim == 2 and "embed" not in module:
                outputs, inputs = array.shape
                pair = {"lora_a": (inputs, rank), "lora_b": (rank, outputs)}
                for letter, size in pair.items():
                    drawn = rng.standard_normal(size) * 0.02
                    arrays[f"{module}.{letter}"] = drawn.astype(np.float32)
        modules = tuple(sorted({key.rpartition(".")[0] for key in arrays}))
        shape = LoraShape(rank=rank, scale=2.0, num_layers=len(weights), modules=modules)
        return Adapter(name=name, version=version, shape=shape, arrays=arrays)

    def run(self, requests: Sequence[Request], beats: list[float] | None = None) -> float:
        """Seconds until all requests are answered.

        Args:
            requests: submitted at once.
            beats: is given the time of every token of the streamed ones.
        """
        heard = None if beats is None else lambda: beats.append(time.perf_counter())
        started = time.perf_counter()
        submit_all(self.engine, requests, on_progress=heard).result()
        return time.perf_counter() - started

    def bare(self, prompts: Sequence[Row], *, max_tokens: int) -> float:
        """Seconds of a bare BatchGenerator on the same prompts and the same tree."""
        return bare_seconds(self.engine, prompts, max_tokens=max_tokens, rows=self.max_rows)

    def computed(self) -> float:
        """Prompt tokens that went through the model so far."""
        return self.engine.stats()["prefill_tokens_total"]
