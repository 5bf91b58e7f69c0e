"""Torch's optimiser step against a plain loop of transformers and PEFT, each in its own process."""

import json
import statistics
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.rounds import Workload
from bench.train_bench import TrainerProcess, program, random_rows
from model_files import ModelShape, random_weights, weight_shapes, write_model

from legos.bench.step_bench import Cost

__all__ = ["PlainLoop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What is trained on one kind of device."""

    shape: ModelShape
    dtype: str
    rows: int
    lengths: tuple[int, int]  # of rows, tokens; half of each is the prompt
    budget: int  # padded tokens of our passes
    blocks: Sequence[int]  # padded rows of the plain loop's passes; the fastest is taken


SIZES = {
    "cpu": _Size(
        shape=ModelShape(
            hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=384, vocab=32_000
        ),
        dtype="float32",
        rows=8,
        lengths=(64, 512),
        budget=512,
        blocks=(4, 8),
    ),
    "cuda": _Size(
        shape=ModelShape(  # 0.75 B parameters: Qwen3-0.6B's sizes, with an output head of its own
            architecture="qwen3",
            hidden=1024,
            layers=28,
            heads=16,
            kv_heads=8,
            head_dim=128,
            intermediate=3072,
            vocab=151_936,
            max_positions=4096,
        ),
        dtype="bfloat16",
        rows=64,
        lengths=(256, 2048),
        budget=16_384,
        blocks=(4, 16),
    ),
}
FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Part of a GPU's name -> its peak in bfloat16 without sparsity, FLOP/s; NVIDIA's data sheets."""

ROUNDS = 5


class PlainLoop:
    """One model and the rows on which both sides make optimiser steps."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], work: Workload) -> None:
        """Write a random model.

        Args:
            folder: folder of the model.
            facts: ``TorchDevice.facts``.
            work: how much to measure.
        """
        self._size = size = SIZES[facts["device"]]
        self._peak = next(
            (flops for name, flops in FLOPS.items() if name in facts.get("device_name", "")), None
        )
        self._on_gpu = facts["device"] == "cuda"
        self._folder = folder
        self._work = work
        self._rows = random_rows(work.size(size.rows, size.rows // 3), *size.lengths, prompt=0.5)
        write_model(folder, size.shape, random_weights(size.shape, np.random.default_rng(0)))
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": size.dtype}))

    def measured(self, python: Path) -> dict[str, Any]:
        """Ratios, and tokens per second and peak bytes of both sides.

        Args:
            python: Python of an environment with torch, transformers and peft.

        Raises:
            TrainerError: the plain loop does not run there.
        """
        plain = program("plain_trainer", self._folder, python=python)
        blocks = self._size.blocks
        with self._process(plain) as step:
            step(blocks[0])
            times = [step(rows).seconds for rows in blocks]
            unpadded = step(1).seconds
        count = blocks[times.index(min(times))]
        steps = program("torch_steps", self._folder, self._size.budget, python=Path(sys.executable))
        with (
            self._process(steps) as ours,
            self._process(plain) as loop,  # a new one, which has seen no other blocks
        ):
            pairs = self._work.in_turn(
                lambda: ours(count), lambda: loop(count), least=3, most=ROUNDS
            )
        tokens = sum(len(ids) for ids, _ in self._rows)
        sides = {
            name: {
                "tokens_per_s": tokens / statistics.median(cost.seconds for cost in costs),
                "peak_bytes": max(cost.peak_bytes for cost in costs),
            }
            for name, costs in zip(("legos", "plain"), zip(*pairs, strict=True), strict=True)
        }
        speed = statistics.median(theirs.seconds / us.seconds for us, theirs in pairs)
        memory = sides["legos"]["peak_bytes"] / sides["plain"]["peak_bytes"]
        figures = {
            "ratios": {"torch_vs_plain": speed, "torch_memory_vs_plain": memory},
            "trainers": sides,
            "plain_tokens_per_s_row_by_row": tokens / unpadded,
        }
        return {**figures, "gpu": self._mfu(sides)} if self._on_gpu else figures

    def _mfu(self, sides: Mapping[str, Mapping[str, float]]) -> Mapping[str, Any]:
        """Share of the GPU's peak that both sides reach; None where the peak is not known.

        A token takes 4 FLOP for each parameter of the layers and the head: a forward pass, and a
        backward pass without gradients of frozen weights. Attention's own products, and what is
        computed twice, are not counted.
        """
        shapes = weight_shapes(self._size.shape)
        used = sum(np.prod(s) for name, s in shapes.items() if "embed_tokens" not in name)
        return {
            name: {"mfu": self._peak and float(4 * used * side["tokens_per_s"] / self._peak)}
            for name, side in sides.items()
        }

    @contextmanager
    def _process(self, command: Sequence[str]) -> Generator[Callable[[int], Cost]]:
        """Within the block, a process makes steps on the rows, so many at once."""
        process = TrainerProcess(command, 1)
        try:
            yield lambda count: process.step(self._rows, count)
        finally:
            process.close()
