"""Gradient checkpointing changes no gradient, also where layers share keys and values."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import small_model
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.mlx.train.rematerialisation import rematerialise_layers
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples

PREFIX = tuple(number % 50 + 5 for number in range(70))


def tree_with_lora(architecture: str) -> Any:
    tree = small_model(architecture)
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False), seed=0)
    rng = np.random.default_rng(1)
    arrays = lora_arrays(tree)
    for name, array in arrays.items():
        arrays[name] = mx.array(0.1 * rng.standard_normal(array.shape), mx.float32)
    set_lora_arrays(tree, arrays)
    return tree


def gradients(tree: Any) -> dict[str, NDArray[np.float32]]:
    """Gradients of three samples that share a prefix, which is computed once."""
    samples = [
        make_sample((*PREFIX, *tail), positions=range(70, 70 + len(tail)), logprobs=-3.0)
        for tail in ((7, 8, 9), (9, 8, 7, 6, 5), (3,))
    ]
    step = StepGradients(tree)
    assert step.shares
    found = step.of_step(StepSamples(samples=samples, weights=[1.0, -0.5, 0.3]), Objective(), {})
    arrays: Any = tree_flatten(found.gradients)
    return {name: np.array(array) for name, array in arrays}


@pytest.mark.parametrize(
    "architecture",
    [
        "hunyuan",  # a layer gives its keys and values to the next one in a tuple
        "gemma4_text",  # later layers use the keys and values of earlier ones
        "gemma4_moe",  # and layers return the arrays that they put into the cache
    ],
)
def test_layers_that_share_keys_and_values_get_the_same_gradient(architecture: str) -> None:
    expected = gradients(tree_with_lora(architecture))
    tree = tree_with_lora(architecture)
    rematerialise_layers(tree)
    found = gradients(tree)
    size = max(float(np.linalg.norm(array)) for array in expected.values())
    assert size > 0.01
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5 * size, err_msg=name)
