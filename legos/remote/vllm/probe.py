"""Compare an adapter at a vLLM server with the trainer's, on a fixed prompt.

vLLM ignores tensors whose names it does not know, and answers 200: only its log-probabilities show
what it has loaded.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from legos.errors import AdapterError
from legos.weights.adapter import Adapter

logger = logging.getLogger(__name__)
Floats = NDArray[np.floating]
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.25}
"""Largest mean difference of a log-probability, nats, by the type in which the server computes."""

CLEAR = 0.5  # nats a token by which the first adapter changes the log-probabilities
TIMES_NOISE = 4.0  # a smaller change cannot be told from rounding


class Probe:
    """A fixed prompt, and the probabilities of the next token that the trainer computes for it."""

    def __init__(
        self,
        prompt: tuple[int, ...],
        watched: tuple[int, ...],
        logprobs: Callable[[Adapter], Floats],
        *,
        like: Adapter,
        dtype: str = "float32",
    ) -> None:
        """Make a probe.

        Args:
            prompt: token ids.
            watched: [K] different token ids, at most 128.
            logprobs: [K] nats of these as the next token, as the trainer computes them under an
                adapter; it is called on a thread.
            like: an adapter with the run's LoRA.
            dtype: the narrower of the float types of trainer and server.
        """
        self.prompt, self.watched = prompt, watched
        self.noise = 0.0  # largest mean difference between server and trainer so far, nats
        self.expected = logprobs
        self._like = like
        self._limit = TOLERANCE[dtype]
        self._dtype = dtype
        self._newest: tuple[str, Floats] = "", np.zeros(0)  # digest, and what it should give
        self._computing = threading.Lock()

    def first_adapter(self) -> Adapter:
        """An adapter of the run's shape that clearly changes the log-probabilities.

        Raises:
            AdapterError: no adapter of this shape does.
        """
        rng = np.random.default_rng(0)
        arrays = {
            name: rng.standard_normal(np.shape(array), np.float32)
            for name, array in self._like.arrays.items()
        }
        sampled = replace(self._like, name="probe", version=0, arrays=arrays)
        for power in range(-16, 6):
            found = sampled.times(2.0**power)
            if _gap(self.expected(found), self._base) > max(CLEAR, 8 * self._limit):
                return found
        raise AdapterError(
            "no adapter of this shape changes the log-probabilities of a fixed prompt"
        )

    def check(self, adapter: Adapter, found: Floats, *, server: str) -> None:
        """Check the log-probabilities of a server: the trainer's, and not those of the base model.

        An opponent may have LoRA of another rank or on other modules, which the trainer's model
        cannot compute; then a warning says where it answers like the base model.

        Args:
            adapter: the adapter that was loaded.
            found: [K] nats at the server.
            server: address of the server.

        Raises:
            AdapterError: they differ.
        """
        base, label = self._base, f"adapter {adapter.name}@{adapter.version}"
        from_base = _gap(found, base)
        if _shapes(adapter) != _shapes(self._like):
            if adapter.has_effect and not from_base > TIMES_NOISE * self.noise:
                logger.warning(
                    "%s answers for %s, whose LoRA is not that of the run and cannot be compared, "
                    "as for the base model: it may ignore the adapter",
                    *(server, label),
                )
            return
        with self._computing:  # once for all servers, each of which is checked on a thread
            if self._newest[0] != adapter.digest:
                self._newest = adapter.digest, self.expected(adapter)
            expected = self._newest[1]
        gap = _gap(found, expected)
        if from_base < gap and _gap(expected, base) > TIMES_NOISE * self.noise:
            raise AdapterError(
                f"{server} has loaded {label} but answers like the base model: vLLM ignores "
                "tensors whose names are not those of its modules. Start the server with the "
                "trainer's model (--model), and compare the names in adapter_model.safetensors "
                "with it (base_model.model.model.layers.0...)"
            )
        if not gap <= self._limit:  # also: not a number
            raise AdapterError(
                f"{server} computes other log-probabilities for {label} than the trainer: they "
                f"differ by {gap:.3g} nats a token, more than the {self._limit:g} of "
                f"{self._dtype}; start the server with the trainer's model and --dtype "
                f"{self._dtype}"
            )
        self.noise = max(self.noise, gap)

    @cached_property
    def _base(self) -> Floats:
        """[K] nats of the model without an adapter."""
        return self.expected(self._like.times(0.0))


def _shapes(adapter: Adapter) -> dict[str, tuple[int, ...]]:
    """Name of each array -> its shape."""
    return {name: np.shape(array) for name, array in adapter.arrays.items()}


def _gap(one: Floats, other: Floats) -> float:
    """Mean difference of log-probabilities, nats."""
    return float(np.abs(one - other).mean())
