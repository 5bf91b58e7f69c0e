"""A bare loop that computes equal prompts once, and the time in which device code runs."""

import time
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from legos.mlx.checks.bare import bare_generator
from legos.mlx.model.spans import covered
from legos.wiring.device import Row

__all__ = ["bare_shared_generation", "record", "recorded"]


def bare_shared_generation(model: nn.Module, counts: Mapping[Row, int], *, rows: int) -> float:
    """Measure the seconds in which a minimal loop samples ``count`` tokens after each prompt.

    A ``BatchGenerator`` computes each distinct prompt once; the tokens are drawn from the
    log-probabilities that it returns, and the log-probability of each token is read.
    """
    started = time.perf_counter()
    generator = bare_generator(model, max_tokens=1, rows=rows)
    prompts = list(counts)
    numbers = dict(zip(generator.insert([list(p) for p in prompts]), prompts, strict=True))
    while numbers:
        for response in generator.next_generated():
            count = counts[numbers.pop(response.uid)]
            tokens = mx.random.categorical(response.logprobs, num_samples=count)
            _ = tokens.tolist(), response.logprobs[tokens].tolist()
    generator.close()
    return time.perf_counter() - started


def record(model: Any) -> None:
    """Start recording the time spans of device code in a model's engines and backend."""
    for spans in model.spans:
        spans.found.clear()
        spans.recording = True


def recorded(model: Any, start: float, end: float) -> float:
    """Seconds in which device code ran, between two readings of ``perf_counter``."""
    found = [span for spans in model.spans for span in spans.found]
    return covered((max(a, start), min(b, end)) for a, b in found if b > start and a < end)
