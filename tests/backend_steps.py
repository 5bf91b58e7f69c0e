"""One step of any backend, and the arrays of the checkpoint that it writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from legos.data.batch import normalisation_weights
from legos.data.sample import Sample
from legos.data.step import PassResult
from legos.losses.objective import Objective

__all__ = ["Arrays", "compute", "saved"]

Arrays = Mapping[str, NDArray[np.float32]]


def compute(backend: Any, samples: Sequence[Sample], objective: Objective) -> PassResult:
    """The forward and backward pass over samples."""
    weights = normalisation_weights(samples, "sample")
    return backend.forward_backward(samples, weights, objective).result()


def saved(backend: Any, folder: Path) -> dict[str, Arrays]:
    """File of a checkpoint -> its arrays."""
    folder.mkdir(parents=True)
    backend.snapshot().result()(folder)
    return {file.stem: load_file(file) for file in folder.glob("*.safetensors")}
