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


def drawn(*parameters: SamplingParams, dtype: Any = mx.bfloat16) -> tuple[mx.array, mx.array]:
    """Draws of some rows from logits of 16 bits, lazy; the settings are taken in turn."""
    logits = mx.array(np.random.default_rng(0).normal(size=(ROWS, 40_960)), mx.bfloat16)
    logits = logits.astype(dtype)
    mx.eval(logits)
    made = distributions(mx, logits, (parameters * ROWS)[:ROWS])
    numbers: Any = list(range(ROWS))
    return draw(mx, made, which=np.arange(ROWS), seeds=numbers, positions=[0] * ROWS)


def kernels(*arrays: mx.array) -> int:
    """Operations that compute something, without changes of shape."""
    found = operations(*arrays)
    return sum(count for name, count in found.items() if name not in VIEWS)


SETTINGS = pytest.mark.parametrize(
    ("parameters", "most"),
    [
        ([SamplingParams()], 16),
        ([SamplingParams(0.7), SamplingParams(1.2)], 16),
        ([SamplingParams(0.0)], 3),
        ([SamplingParams(), SamplingParams(0.0)], 17),
        ([SamplingParams(1.0, None, Filters(min_p=0.05))], 18),
        ([SamplingParams(0.8, None, Filters(top_k=20, top_p=0.95))], 31),
        ([SamplingParams(1.0, None, Filters(top_p=0.95))], 32),
    ],
)


@SETTINGS
@pytest.mark.usefixtures("compiling")
def test_a_draw_starts_few_kernels(parameters: list[SamplingParams], most: int) -> None:
    assert kernels(*drawn(*parameters, dtype=mx.float32)) <= most
    assert kernels(*drawn(*parameters)) <= most + 1  # the type of the largest logits changes


@SETTINGS
def test_logits_in_16_bits_are_drawn_from_as_the_same_ones_in_32(
    parameters: list[SamplingParams], most: int
) -> None:
    (tokens, logprobs), (same, expected) = (
        drawn(*parameters, dtype=dtype) for dtype in (mx.bfloat16, mx.float32)
    )
    assert tokens.tolist() == same.tolist()
    assert logprobs.tolist() == expected.tolist()
    assert logprobs.dtype == mx.float32
