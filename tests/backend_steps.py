"""One step of any backend, and the arrays of the checkpoint that it writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from legos.data.batch import normalisation_weights
from legos.data.sample import Sample
from legos.data.step import PassResult, Stop, Update, never
from legos.errors import Stopped, TrainerError
from legos.losses.objective import Objective

__all__ = ["Arrays", "check_stops", "compute", "saved"]

Arrays = Mapping[str, NDArray[np.float32]]


def compute(
    backend: Any, samples: Sequence[Sample], objective: Objective, *, stop: Stop = never
) -> PassResult:
    """The forward and backward pass over samples."""
    weights = normalisation_weights(samples, "sample")
    return backend.forward_backward(samples, weights, objective, stop=stop).result()


def check_stops(backend: Any, samples: Sequence[Sample], objective: Objective) -> int:
    """Stop a step before each of its passes in turn; nothing changes, and the step can be made.

    Returns:
        How often the step asks whether to stop.
    """
    asked = 0

    def stop(after: int) -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    compute(backend, samples, objective)  # plans the memory of steps
    expected = compute(backend, samples, objective, stop=lambda: stop(1 << 30))
    most = asked
    for number in range(most):
        asked = 0
        with pytest.raises(Stopped):
            compute(backend, samples, objective, stop=lambda number=number: stop(number))
        assert asked == number + 1
        with pytest.raises(TrainerError, match="no gradients"):
            backend.optim_step(Update(learning_rate=1e-2)).result()
    found = compute(backend, samples, objective)
    assert (found.loss, found.sums, found.grad_norm) == (
        expected.loss,
        expected.sums,
        expected.grad_norm,
    )
    return most


def saved(backend: Any, folder: Path) -> dict[str, Arrays]:
    """File of a checkpoint -> its arrays."""
    folder.mkdir(parents=True)
    backend.snapshot().result()(folder)
    return {file.stem: load_file(file) for file in folder.glob("*.safetensors")}
