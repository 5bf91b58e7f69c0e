"""mlx-lm-lora's gradients; run with ``uv run --with mlx-lm-lora pytest -m optional``.

On Linux ``--with 'mlx[cpu]'`` as well: uv lays what is asked for over the environment.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from bench.programs.peer_trainer import mlx_lm_lora_gradients
from mlx.utils import tree_flatten
from tiny_folders import write_tiny_model

from legos.fakes import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

ROWS = [((5, 9, 40, 77, 12, 8), 3), ((8, 1, 300, 20), 2), ((5, 9, 40, 90, 91, 7, 2), 3)]
ADVANTAGES = [1.5, -0.5, -1.0]


def test_one_step_has_the_gradients_of_mlx_lm_lora(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm_lora")
    model = load_tree(write_tiny_model(tmp_path, seed=3))
    add_lora(model, lora_shape(model, rank=4, alpha=8.0, num_layers=1000, head=False), seed=0)
    rng = np.random.default_rng(1)
    moved = {
        name: mx.array(rng.normal(0.0, 0.1, array.shape).astype(np.float32))
        for name, array in lora_arrays(model).items()
    }
    set_lora_arrays(model, moved)
    theirs = dict(tree_flatten(mlx_lm_lora_gradients(model, ROWS, ADVANTAGES, 2)))
    samples = [
        make_sample(tokens, positions=range(prompt, len(tokens)), advantages=advantage)
        for (tokens, prompt), advantage in zip(ROWS, ADVANTAGES, strict=True)
    ]
    step = StepSamples(samples=samples, weights=normalisation_weights(samples, "token"))
    found = StepGradients(model, BackendConfig(micro_batch_tokens=16)).of_step(
        step, Objective(loss="reinforce"), {}
    )
    ours = dict(tree_flatten(found.gradients))
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        np.testing.assert_allclose(gradient, theirs[name], rtol=1e-4, atol=1e-6)
        assert np.abs(gradient).max() > 1e-4
