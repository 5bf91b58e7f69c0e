"""What a device computes for its backend, and what it finds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from legos.losses.objective import Objective
from legos.records.count import Count
from legos.records.packing import StepSamples
from legos.records.step import Stop, never
from legos.weights.reference import Lora

T = TypeVar("T")
Arrays = Mapping[str, Any]
"""Name of a LoRA array -> the array, on the device."""
Others = Mapping[str, Lora | None]
"""Name of another policy ("reference", "ema") -> its LoRA; None: the base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The results of the passes of a step."""

    loss: float
    sums: NDArray[np.float64]  # [len(SUMS)] for the metrics
    gradients: Any  # tree of the trained arrays
    logprobs: NDArray[np.float32]  # [N] nats of the chosen tokens, sample by sample
    entropies: NDArray[np.float32]  # [N] nats at their positions
    row_limit: int | None = None  # tokens; longer samples were left out; None: none was
    peak_bytes: int | None = None  # peak memory of the device; None: not measured
    pass_s: float | None = None  # seconds of the longest pass; None: not measured


class DeviceGradients(Protocol):
    """What a device computes for a backend; all calls are made on the model's thread."""

    xp: Any  # array namespace of the device, with ``value_and_grad`` and ``compile``
    num_vocabulary: int  # token ids of samples are below it
    passes: Count  # of the step that is computed, in this process; another thread may read it

    def array(self, values: Any) -> Any:
        """A float32 copy of an array on the device."""

    def host(self, arrays: Arrays) -> Arrays:
        """The same arrays as NumPy can read them on any thread, without a copy where possible."""

    def install(self, arrays: Arrays) -> None:
        """Make the model compute with some LoRA arrays, without a copy."""

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> StepResult:
        """Loss, sums, values of each token and gradients by name, of the installed arrays."""

    def computed(self, compute: Callable[[], T]) -> T:
        """Run a computation to its end; after an error of the device, perhaps once more."""

    def evaluate(self, *arrays: Arrays) -> None:
        """Wait until arrays are computed."""
