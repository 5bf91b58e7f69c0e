"""A bare loop that computes equal prompts once, and the time in which device code runs."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from legos.mlx.checks.bare import bare_generator
from legos.mlx.generate.sampling.sampler import Sampler
from legos.mlx.train.step_gradients import StepGradients
from legos.wiring.device import Row

__all__ = ["DeviceTime", "bare_shared_generation"]


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


class DeviceTime:
    """Records the time spans of device code on all threads within ``with``."""

    def __enter__(self) -> "DeviceTime":
        self._found: list[tuple[float, float]] = []
        self._before = Sampler.draw, Sampler.read, StepGradients.computed
        draw, read, computed = self._before
        timed = self._timed

        def timed_draw(self: Any, rows: Any, logits: mx.array, **options: Any) -> Any:
            if not self.on_device:
                timed(mx.eval, logits)
            return draw(self, rows, logits, **options)

        def timed_read(self: Any, draws: Any) -> Any:
            if self.on_device:
                timed(mx.eval, draws.tokens, draws.logprobs)
            return read(self, draws)

        def timed_compute(self: Any, compute: Any) -> Any:
            return timed(computed, self, compute)

        Sampler.draw, Sampler.read = timed_draw, timed_read
        StepGradients.computed = timed_compute
        return self

    def __exit__(self, *_: object) -> None:
        Sampler.draw, Sampler.read, StepGradients.computed = self._before

    def between(self, start: float, end: float) -> float:
        """Seconds in which device code ran, between two readings of ``perf_counter``."""
        total, last = 0.0, start
        for began, ended in sorted(self._found):
            total += max(0.0, min(ended, end) - max(began, last))
            last = max(last, ended)
        return total

    def _timed(self, call: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*given)
        finally:
            self._found.append((began, time.perf_counter()))
