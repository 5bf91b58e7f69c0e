"""Several processes that ``torchrun`` started compute the steps that one computes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_samples import random_samples
from safetensors.numpy import load_file
from tiny_models import write_any_model

from legos.errors import ConfigError
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.records.sample import Sample
from legos.records.step import BackendConfig, Update
from legos.wiring.model import apply_lora, follow, load_model

pytestmark = pytest.mark.torch  # imported by the first test, not by every worker

TOKENS = (5, 6, 7, 8, 9)
SIZES = (12, 5, 1)  # samples of each step; the last has fewer than there are processes


def some_samples(seed: int, num_samples: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return random_samples(
        rng, num_samples=num_samples, vocab=40, max_length=9, support="mixed", temperatures=(0.7,)
    )


def train(model: Path, out: Path) -> None:
    """A few steps from the first adapter, with everything that uses the model's weights."""
    handle = load_model(model, inline=True, device="torch")
    apply_lora(handle, rank=4, layers=8, alpha=8.0)
    backend: Any = handle.make_backend(
        BackendConfig(betas=(0.0, 0.95), micro_batch_tokens=24, gradient_checkpointing=True)
    )
    for number, size in enumerate(SIZES):
        loss = "online_dpo" if number == 1 else "ppo"
        objective = Objective(loss=loss, kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.1)
        samples = some_samples(number, size)
        weights = normalisation_weights(samples, "sample")
        found = backend.forward_backward(samples, weights, objective).result()
        update = Update(learning_rate=1e-2, max_grad_norm=0.5, ema_decay=0.9)
        backend.optim_step(update).result()
        folder = out / f"{number}"
        folder.mkdir(parents=True)
        backend.snapshot().result()(folder)  # with a first beta of 0, the moment is the gradient
        np.savez(
            folder / "found.npz",
            loss=found.loss,
            sums=found.sums,
            norm=found.grad_norm,
            own=np.concatenate(found.logprobs),
            logits=handle(TOKENS),
        )
    handle.close()


def launched(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """This file under ``torchrun``, in two processes."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", __file__, *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        check=False,
    )


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    model = write_any_model(tmp_path / "model", architecture="llama")
    done = launched(tmp_path / "two", model, model)
    assert done.returncode == 0, done.stderr
    train(model, tmp_path / "one")
    for number in range(len(SIZES)):
        one, two = (tmp_path / name / f"{number}" for name in ("one", "two"))
        expected, found = (np.load(folder / "found.npz") for folder in (one, two))
        for name in expected.files:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-4), name
        for file in ("adapter", "ema", "optimiser"):
            arrays, others = (load_file(folder / f"{file}.safetensors") for folder in (one, two))
            for name, array in arrays.items():
                assert np.linalg.norm(others[name] - array) <= 1e-4 * np.linalg.norm(array) + 1e-7


@pytest.mark.nightly
def test_another_model_on_one_process_ends_all_with_its_name(tmp_path: Path) -> None:
    models = [write_any_model(tmp_path / name, architecture=name) for name in ("llama", "qwen3")]
    done = launched(tmp_path / "two", *models)
    assert done.returncode != 0
    assert f"process 1 of 2 has another model in {models[1]} than process 0" in done.stderr
    assert not (tmp_path / "two").exists()


def test_other_devices_of_a_launcher_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not follow("mlx", "builtin")
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"torchrun started.*'mlx'; start them with mlx.launch"):
        follow("mlx", "builtin")


if __name__ == "__main__":
    folder, *models = map(Path, sys.argv[1:])
    if not follow("torch", str(models[int(os.environ["RANK"])])):
        train(models[0], folder)
