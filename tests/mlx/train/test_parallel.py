"""Two processes on one machine make the step that one makes."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from launched import finished, two_processes
from tiny_folders import write_tiny_model

SCRIPT = """
import json, sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from legos.device.groups import of_groups
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.train.step_gradients import StepGradients
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.mlx.train.processes import MlxProcesses
from legos.records.packing import StepSamples
from random_samples import random_samples

group = mx.distributed.init()
tree = load_tree(Path(sys.argv[1]))
add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True), seed=0)
rng = np.random.default_rng(1)
set_lora_arrays(tree, {
    name: mx.array((0.1 * rng.standard_normal(array.shape)).astype(np.float32))
    for name, array in lora_arrays(tree).items()
})
samples = random_samples(np.random.default_rng(0), num_samples=20, vocab=20, max_length=12)
weights = normalisation_weights(samples, "sample")
gradients = StepGradients(tree, group=MlxProcesses(group))
step = StepSamples(samples=samples, weights=weights)
found = gradients.of_step(step, Objective(kl_coef=0.1), {"reference": None})
flat = np.concatenate([np.array(a).reshape(-1) for a in found.gradients.values()])
out = Path(sys.argv[2]) / f"{group.size()}.{group.rank()}.npz"
dpo = Objective(loss="online_dpo")
groups = of_groups(gradients, lambda part: gradients.of_step(part, dpo, {}), step, dpo)
slopes = np.concatenate([np.array(a).reshape(-1) for a in groups.gradients.values()])
losses = [found.loss, groups.loss]
values = [found.logprobs, found.entropies]
np.savez(out, loss=losses, sums=found.sums, values=values, gradients=flat, dpo=slopes)
"""


@pytest.mark.slow
def test_two_processes_make_the_gradient_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    write_tiny_model(tmp_path / "model")
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    command = (script, tmp_path / "model", tmp_path)
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    runpy.run_path(str(script))
    with two_processes() as twice:
        finished((*twice, *command))
    alone = np.load(tmp_path / "1.0.npz")
    assert np.abs(alone["gradients"]).max() > 1e-3
    for rank in range(2):
        together = np.load(tmp_path / f"2.{rank}.npz")
        for name in ("gradients", "dpo"):
            gap = np.linalg.norm(together[name] - alone[name])
            assert gap < 1e-6 * np.linalg.norm(alone[name])
        for name in ("loss", "sums", "values"):  # sums of exponentials: float32's rounding
            np.testing.assert_allclose(together[name], alone[name], rtol=1e-5, atol=1e-5)
