"""The kernels that a GPU starts for the draws of a step, which take time however few the rows."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from graphs import operations

from legos.mlx.generate.sampling.draw import SamplingParams, distributions, draw
from legos.records.message import Filters

VIEWS = ("Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Squeeze", "Unflatten")
ROWS = 4


def drawn(*parameters: SamplingParams, vocabulary: int = 40_960) -> tuple[mx.array, mx.array]:
    """Draws of some rows, lazy; the settings are taken in turn."""
    logits = mx.array(np.random.default_rng(0).normal(size=(ROWS, vocabulary)), mx.float32)
    made = distributions(mx, logits, (parameters * ROWS)[:ROWS])
    numbers: Any = list(range(ROWS))
    return draw(mx, made, which=np.arange(ROWS), seeds=numbers, positions=[0] * ROWS)


def kernels(*arrays: mx.array) -> int:
    """Operations that compute something, without changes of shape."""
    found = operations(*arrays)
    return sum(count for name, count in found.items() if name not in VIEWS)


@pytest.mark.parametrize(
    ("parameters", "most"),
    [
        ([SamplingParams()], 16),
        ([SamplingParams(0.7), SamplingParams(1.2)], 16),
        ([SamplingParams(0.0)], 3),
        ([SamplingParams(), SamplingParams(0.0)], 17),
        ([SamplingParams(1.0, None, Filters(min_p=0.05))], 18),
        ([SamplingParams(0.8, None, Filters(top_k=20, top_p=0.95))], 31),
        ([SamplingParams(1.0, None, Filters(top_p=0.95))], 30),
    ],
)
def test_a_draw_starts_few_kernels(parameters: list[SamplingParams], most: int) -> None:
    assert kernels(*drawn(*parameters)) <= most
