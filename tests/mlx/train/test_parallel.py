"""Two processes on one machine make the step that one makes."""

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from launched import finished, two_processes
from tiny_folders import write_tiny_model

from legos.builtin import builtin_path
from legos.errors import DeviceError
from legos.mlx import device
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train.processes import MlxProcesses
from legos.mlx.train.step_gradients import StepGradients
from legos.records.step import BackendConfig

TREE = """
import sys
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from legos.device.backend import LoraBackend
from legos.device.groups import of_groups
from legos.device.leader import Leader, follow
from legos.device.worker import InlineWorker
from legos.fakes import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.train.step_gradients import StepGradients
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.mlx.train.processes import MlxProcesses
from legos.records.names import POLICY
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter
from random_samples import random_samples

group = MlxProcesses(mx.distributed.init())
out = Path(sys.argv[2]) / f"{group.size}.{group.rank}.npz"
tree = load_tree(Path(sys.argv[1]))
shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True)
add_lora(tree, shape, seed=0)
rng = np.random.default_rng(1)
set_lora_arrays(tree, {
    name: mx.array((0.1 * rng.standard_normal(array.shape)).astype(np.float32))
    for name, array in lora_arrays(tree).items()
})
"""

STEP = """
samples = random_samples(np.random.default_rng(0), num_samples=20, vocab=20, max_length=12)
weights = normalisation_weights(samples, "sample")
gradients = StepGradients(tree, group=group)
step = StepSamples(samples=samples, weights=weights)
found = gradients.of_step(step, Objective(kl_coef=0.1), {"reference": None})
flat = np.concatenate([np.array(a).reshape(-1) for a in found.gradients.values()])
dpo = Objective(loss="online_dpo")
groups = of_groups(gradients, lambda part: gradients.of_step(part, dpo, {}), step, dpo)
slopes = np.concatenate([np.array(a).reshape(-1) for a in groups.gradients.values()])
losses = [found.loss, groups.loss]
values = [found.logprobs, found.entropies]
np.savez(out, loss=losses, sums=found.sums, values=values, gradients=flat, dpo=slopes)
"""

LED = """
samples = []
for prefix in range(4):
    shared = [prefix + 1, *rng.integers(1, 20, 79).tolist()]
    samples += [make_sample([*shared, end, *rng.integers(1, 20, 30).tolist()]) for end in (1, 2)]

def make(*_):
    tokens = int(sys.argv[3 + group.rank])
    return StepGradients(tree, BackendConfig(micro_batch_tokens=tokens), group=group)

if group.size > 1:  # as large arrays are, each is summed in an exchange of its own
    nn.average_gradients = partial(nn.average_gradients, all_reduce_size=1)
if group.rank:
    follow(group, make)
else:
    leader = Leader(group if group.size > 1 else None)
    first = Adapter(name=POLICY, version=0, shape=shape, arrays=lora_arrays(tree))
    backend = LoraBackend(InlineWorker().call, make, first, leader=leader)
    found = {}
    for part in (samples, samples[:1]):  # of one row, the other process has no pass
        backend.forward_backward(part, [1.0] * len(part), Objective(loss="reinforce")).result()
        gradients = backend._policies[POLICY].pending.values()
        found[f"{len(part)}"] = np.concatenate([np.array(a).reshape(-1) for a in gradients])
    leader.end()
    np.savez(out, **found)
"""


@pytest.mark.slow
def test_two_processes_make_the_gradient_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_alone_and_twice(TREE + STEP, tmp_path, monkeypatch)
    alone = np.load(tmp_path / "1.0.npz")
    assert np.abs(alone["gradients"]).max() > 1e-3
    for rank in range(2):
        together = np.load(tmp_path / f"2.{rank}.npz")
        for name in ("gradients", "dpo"):
            gap = np.linalg.norm(together[name] - alone[name])
            assert gap < 1e-6 * np.linalg.norm(alone[name])
        for name in ("loss", "sums", "values"):  # sums of exponentials: float32's rounding
            np.testing.assert_allclose(together[name], alone[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokens", [pytest.param(("4096", "4096"), marks=pytest.mark.nightly), ("4096", "64")]
)
def test_a_process_that_follows_takes_part_in_every_exchange_of_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: tuple[str, str]
) -> None:
    """It reads none of the sums; the first process reads them all, after the step.

    In passes of 4096 tokens it pays to share the prefixes of these rows, and in passes of 64 it
    does not, as where the machines have unequal memory.
    """
    run_alone_and_twice(TREE + LED, tmp_path, monkeypatch, *tokens)
    alone, together = (np.load(tmp_path / f"{size}.0.npz") for size in (1, 2))
    assert alone.files == together.files == ["8", "1"]
    for name in alone.files:
        assert np.abs(alone[name]).max() > 1e-4
        gap = np.linalg.norm(together[name] - alone[name])
        assert gap < 1e-5 * np.linalg.norm(alone[name])


def run_alone_and_twice(
    script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> None:
    """Run a script in this process and in two, with the folders of a model and of its results."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    write_tiny_model(folder / "model")
    file = folder / "step.py"
    file.write_text(script)
    command = (file, folder / "model", folder, *more)
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    runpy.run_path(str(file))
    with two_processes() as twice:
        finished((*twice, *command))


def test_processes_that_differ_plan_from_the_same_trie(tiny_models: Mapping[str, Path]) -> None:
    def smallest(own: int) -> int:  # the other process has less memory, and shares no prefix
        return 0 if own is True else min(own, 256)

    tree = load_tree(tiny_models["llama"])
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True), seed=0)
    group: Any = SimpleNamespace(rank=0, size=2, smallest=smallest)
    config = BackendConfig(micro_batch_tokens=4096)
    assert StepGradients(tree, config).shares
    made = StepGradients(tree, config, group=group)
    assert (made.shares, made._tokens.full) == (False, 256)


class Second(MlxProcesses):
    """The second process of two."""

    def __init__(self, group: object) -> None:
        self.rank, self.size = 1, 2

    def gathered(self, value: Any) -> list[Any]:
        return [value] * self.size


def test_a_memory_limit_of_the_first_machine_is_at_most_what_a_follower_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = lora_shape(load_tree(builtin_path()), rank=2, alpha=2.0, num_layers=1, head=False)
    limits = (1 << 40, 1 << 20, None)
    orders: list[Any] = [("begin", shape, BackendConfig(memory_limit_bytes=one)) for one in limits]
    orders.append(("end",))
    found: list[int | None] = []
    monkeypatch.setattr(Second, "receive", lambda _: orders.pop(0))
    monkeypatch.setattr(device, "process_group", object)
    monkeypatch.setattr(device, "MlxProcesses", Second)
    monkeypatch.setattr(device, "add_lora", lambda *_, **__: None)
    monkeypatch.setattr(device, "usable_bytes", lambda: 1 << 30)
    monkeypatch.setattr(
        device, "StepGradients", lambda _, config, group: found.append(config.memory_limit_bytes)
    )
    device.MlxDevice().follow(str(builtin_path()))
    assert found == [1 << 30, 1 << 20, None]


def test_a_device_that_fails_a_process_that_follows_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> Any:
        raise RuntimeError("[METAL] Command buffer execution failed: (OutOfMemory)")

    monkeypatch.setattr(Second, "receive", fail)
    monkeypatch.setattr(device, "process_group", object)
    monkeypatch.setattr(device, "MlxProcesses", Second)
    with pytest.raises(DeviceError, match="the GPU ran out of memory; lower training"):
        device.MlxDevice().follow(str(builtin_path()))
