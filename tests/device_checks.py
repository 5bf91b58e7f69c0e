"""Checks of a device on small random models, for what Metal does wrong and a CPU does right.

Each returns figures, or the reason why it cannot run here.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from architectures.engines import small_engine
from architectures.references import chosen, ended_sample
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from legos.clients.submit import submit_all
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import VOCABULARY, small_model
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train.step_gradients import StepGradients
from legos.records.names import BASE
from legos.records.packing import StepSamples
from legos.records.request import Request

__all__ = ["CHECKS", "exceeded", "hybrid_decoding", "processes"]

Figures = Mapping[str, float]
Row = tuple[int, ...]
SIZES: dict[str, Any] = {"max_position_embeddings": 4096}
ROWS, LONG = 8, 1025  # prompts, and tokens of the shortest; Metal's attention changes at 1,024
WINDOW = 32  # decode steps; the engine evaluates its caches once in so many
DECODE_S, MOST_STEPS = 4.0, 2000  # of the check of growing memory
PROCESSES = 3
TOO_LARGE = 1 << 20, 1 << 30  # bytes: a petabyte
_CHILD = """
import sys
sys.modules["mlx_lm.utils"] = None  # slow to import, and not used here
import mlx.core as mx
from legos.device.worker import ThreadWorker
def compute():
    mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))
ThreadWorker("check", mx.clear_streams).call(compute).result()
compute()
"""  # the end of the process has to close the worker


def small_steps() -> Figures:
    """Distance of a step's gradients from those of whole rows that the CPU computes.

    The models have linear attention (qwen3_5), experts (qwen3_moe), and weights in 4 bits.
    """
    four_bits = small_model("llama", hidden_size=64)
    nn.quantize(four_bits, group_size=32, bits=4)
    trees = {"qwen3_5": small_model("qwen3_5"), "qwen3_moe": small_model("qwen3_moe")}
    return {name: _distance(tree) for name, tree in (trees | {"four_bits": four_bits}).items()}


def long_rows() -> Figures:
    """Largest difference of a token's log-probability in a batch from that of its row alone.

    In bfloat16, for prompts of unlike lengths, padded on the left.
    """
    fields = SIZES | {"dtype": mx.bfloat16, "head_dim": 64, "num_hidden_layers": 1}
    fields |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(1, VOCABULARY, LONG + 9 * n).tolist()) for n in range(ROWS)]
    requests = [_request(prompt, 16, seed=number) for number, prompt in enumerate(prompts)]
    gaps: list[float] = []
    with closing(small_engine("llama", **fields)) as engine:
        for prompt, answer in zip(prompts, submit_all(engine, requests).result(), strict=True):
            row = prompt + answer.token_ids
            alone = engine.run(partial(_alone, row=row, start=len(prompt))).result()
            gaps.append(float(np.abs(alone - answer.logprobs).max()))
    return {"largest_gap_nats": max(gaps), "rows": ROWS, "shortest": LONG}


def hybrid_decoding(seconds: float = DECODE_S) -> Figures:
    """Bytes by which memory grows in a decode step of a model with states and keys and values.

    The lower quartile over windows of steps leaves out those in which a cache of keys and values
    grows, which are up to half of them.

    Args:
        seconds: time for which there are at most ``MOST_STEPS`` steps.
    """
    held: list[int] = []
    with closing(small_engine("qwen3_5", **SIZES)) as engine:
        started = time.perf_counter()
        submit_all(engine, [_request((1, 2), 2 * WINDOW)]).result()
        step_s = (time.perf_counter() - started) / (2 * WINDOW)
        steps = int(min(MOST_STEPS, max(6 * WINDOW, seconds / step_s)))
        asked = [_request((1, 2, 3), steps, stream=True)]
        submit_all(engine, asked, on_progress=lambda: held.append(mx.get_active_memory())).result()
    windows = [min(held[n : n + WINDOW]) for n in range(WINDOW, len(held) - WINDOW + 1, WINDOW)]
    growth = float(np.quantile(np.diff(windows), 0.25)) / WINDOW
    return {"bytes_per_step": growth, "steps": steps, "step_ms": 1000 * step_s}


def processes(count: int = PROCESSES) -> Figures:
    """Number of processes that compute on two threads and do not end with exit code 0."""
    children = [
        subprocess.Popen([sys.executable, "-c", _CHILD], stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    return {"failed": sum(child.wait() != 0 for child in children), "processes": count}


def failed_allocation() -> Figures | str:
    """Whether an allocation beyond any memory raises, and what is computed afterwards is right."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return "MLX on the CPU does not report that memory is lacking; the process ends"
    raised = False
    try:
        mx.eval(mx.zeros(TOO_LARGE, mx.uint8) + mx.arange(TOO_LARGE[1]).astype(mx.uint8))
    except RuntimeError:
        raised = True
    return {"not_raised": float(not raised), "error": _product()}


CHECKS: Mapping[str, Callable[[], Figures | str]] = {
    "small_steps": small_steps,
    "long_rows": long_rows,
    "hybrid_decoding": hybrid_decoding,
    "processes": processes,
    "failed_allocation": failed_allocation,
}
LIMITS: Mapping[str, Mapping[str, float]] = {
    "small_steps": dict.fromkeys(("qwen3_5", "qwen3_moe", "four_bits"), 1e-3),
    "long_rows": {"largest_gap_nats": 0.1},
    "hybrid_decoding": {"bytes_per_step": 1.0},
    "processes": {"failed": 0.0},
    "failed_allocation": {"not_raised": 0.0, "error": 0.0},
}
"""Check -> figure -> its largest value."""


def exceeded(name: str) -> list[str]:
    """The figures of a check that exceed their limits; skips the test where it cannot run."""
    figures = CHECKS[name]()
    if isinstance(figures, str):
        pytest.skip(figures)
    return [figure for figure, limit in LIMITS[name].items() if not figures[figure] <= limit]


def _distance(tree: nn.Module) -> float:
    """Norm of the difference of a step's gradients from plain ones, relative to the plain ones."""
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False), seed=0)
    step = StepGradients(tree)
    prefix, weights = tuple(range(5, 25)), (1.0, -0.5, 0.3)
    rows = [(*prefix, 7, 8), (*prefix, 9, 8, 7), (*prefix[:10], 3)]

    def loss(parameters: Any) -> mx.array:
        tree.update(parameters)
        pairs = zip(rows, weights, strict=True)
        return mx.stack([-w * mx.sum(chosen(tree, row, 10)) for row, w in pairs]).sum()

    with mx.stream(mx.cpu):
        before: Any = tree.trainable_parameters()
        expected: Any = dict(tree_flatten(mx.grad(loss)(before)))
        tree.update(before)
        samples = [ended_sample(row, _alone(tree, row, 10).tolist()) for row in rows]
        mx.eval(expected)
    found: Any = step.of_step(StepSamples(samples=samples, weights=weights), Objective(), {})
    arrays = dict(tree_flatten(found.gradients))
    pairs = [(np.array(arrays[name]), np.array(array)) for name, array in expected.items()]
    difference, norm = (
        np.sqrt(sum(float(np.sum(array**2)) for array in of))
        for of in ([a - b for a, b in pairs], [b for _, b in pairs])
    )
    return float(difference / norm)


def _alone(tree: nn.Module, row: Row, start: int) -> NDArray[np.float32]:
    """``chosen`` in NumPy."""
    return np.array(chosen(tree, row, start))


def _request(prompt: Sequence[int], max_tokens: int, **fields: Any) -> Request:
    return Request(prompt_ids=tuple(prompt), max_tokens=max_tokens, adapter=BASE, **fields)


def _product() -> float:
    """Largest error of a product of matrices whose result is known."""
    found: Any = mx.abs(mx.ones((64, 64)) @ mx.ones((64, 64)) - 64.0).max().item()
    return found
