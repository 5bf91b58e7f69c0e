"""The update of an array with Adam: its numbers, and how few kernels it starts."""

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from graphs import operations

from legos.device.adam import EPSILON, make_update


def test_updates_are_those_of_mlx() -> None:
    update, rng = make_update(mx, (0.9, 0.99)), np.random.default_rng(0)
    array = expected = mx.array(rng.standard_normal((3, 4)), mx.float32)
    moments = mx.zeros_like(array), mx.zeros_like(array)
    theirs = optim.Adam(1e-2, betas=[0.9, 0.99], eps=EPSILON, bias_correction=True)
    for number in range(1, 6):
        gradient = mx.array(rng.standard_normal((3, 4)), mx.float32)
        rate, correction = 1e-2 / (1 - 0.9**number), (1 - 0.99**number) ** -0.5
        scalars = mx.array(0.5), mx.array(rate), mx.array(correction)
        array, *moments = update(array, gradient, tuple(moments), scalars)
        expected = theirs.apply_gradients({"a": 0.5 * gradient}, {"a": expected})["a"]
        np.testing.assert_allclose(np.array(array), np.array(expected), atol=1e-6)


@pytest.mark.usefixtures("compiling")
def test_an_update_starts_three_kernels_at_most() -> None:
    """A step updates hundreds of arrays, and on a GPU each kernel takes time to start."""
    one, scalar = mx.ones((2, 3)), mx.array(1.0)
    updated = make_update(mx, (0.9, 0.99))(one, one, (one, one), (scalar, scalar, scalar))
    assert operations(*updated).total() <= 3
