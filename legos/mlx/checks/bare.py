"""Baseline generation for benches: mlx-lm's ``BatchGenerator`` without an engine around it."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator

__all__ = ["bare_generation", "bare_load", "bare_shared_generation"]

Row = tuple[int, ...]


def bare_generation(
    model: nn.Module, prompts: Sequence[Row], *, max_tokens: int, rows: int
) -> float:
    """Measure the seconds in which a ``BatchGenerator`` samples one completion of every prompt.

    Args:
        model: the module tree with LoRA.
        prompts: token ids of each prompt; equal prompts are computed again.
        max_tokens: number of tokens of each completion.
        rows: number of rows that are decoded, and prefilled, at once.
    """
    started = time.perf_counter()
    generator = _generator(model, max_tokens=max_tokens, rows=rows)
    generator.insert([list(prompt) for prompt in prompts])
    left = len(prompts)
    while left:
        left -= sum(r.finish_reason is not None for r in generator.next_generated())
    generator.close()
    return time.perf_counter() - started


def bare_shared_generation(model: nn.Module, counts: Mapping[Row, int], *, rows: int) -> float:
    """Measure the seconds in which a minimal loop samples ``count`` tokens after each prompt.

    A ``BatchGenerator`` computes each distinct prompt once; the tokens are drawn from the
    log-probabilities that it returns, and the log-probability of each token is read.
    """
    started = time.perf_counter()
    generator = _generator(model, max_tokens=1, rows=rows)
    prompts = list(counts)
    numbers = dict(zip(generator.insert([list(p) for p in prompts]), prompts, strict=True))
    while numbers:
        for response in generator.next_generated():
            count = counts[numbers.pop(response.uid)]
            tokens = mx.random.categorical(response.logprobs, num_samples=count)
            _ = tokens.tolist(), response.logprobs[tokens].tolist()
    generator.close()
    return time.perf_counter() - started


def bare_load(file: Path) -> float:
    """Measure the seconds in which MLX reads a file of arrays."""
    started = time.perf_counter()
    mx.eval(mx.load(str(file)))
    return time.perf_counter() - started


def _generator(model: nn.Module, *, max_tokens: int, rows: int) -> BatchGenerator:
    """A generator that leaves Metal's wired limit as it is; see ``bound_memory``."""
    module = sys.modules[BatchGenerator.__module__]
    vars(module)["maybe_set_recommended_wired_limit"] = lambda: None
    return BatchGenerator(
        model,
        max_tokens=max_tokens,
        sampler=mx.random.categorical,
        completion_batch_size=rows,
        prefill_batch_size=rows,
        stream=mx.default_stream(mx.default_device()),
    )
