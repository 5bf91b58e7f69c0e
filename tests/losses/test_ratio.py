"""The policy held still for the gradient, in every array namespace that is known."""

import types

import mlx.core as mx
import numpy as np
import pytest

from legos.losses.ratio import detach


def test_no_gradient_goes_through() -> None:
    def square(x: mx.array) -> mx.array:
        return x * detach(mx, x)

    assert mx.grad(square)(mx.array(3.0)).item() == 3.0
    array = np.ones(3)
    assert detach(np, array) is array


def test_an_unknown_namespace_is_refused() -> None:
    with pytest.raises(AttributeError, match="'arrays' has no attribute 'stop_gradient'"):
        detach(types.ModuleType("arrays"), np.ones(3))
