"""Sampler and trainer agree; where 16 bits make them differ, the default corrects it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from backend_steps import logprobs_of
from msgspec.structs import replace
from tiny_folders import write_tiny_model

from legos import Trainer, TrainingConfig, load_model
from legos.cli.process import main
from legos.fakes import make_sample
from legos.records.group import Group

ARENA = """
from legos import Arena, Task


class Vowels(Arena):
    roles = ("writer",)
    max_tokens = 48

    def tasks(self, rng):
        yield from (Task(id=str(number), data=number) for number in range(8))

    async def play(self, t):
        text = (await t.ask("writer", f"Write {t.task.data}:")).text
        return {"writer": sum(text.count(vowel) for vowel in "aeiou") / 48}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A random model with sharp distributions, in float32 and in bfloat16."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("float32", "bfloat16"):
        for file in write_tiny_model(root / kind, hidden=64).glob("model*.safetensors"):
            arrays: Any = mx.load(str(file))
            larger = {name: array * (6 if array.ndim > 1 else 1) for name, array in arrays.items()}
            sharp = {name: array.astype(getattr(mx, kind)) for name, array in larger.items()}
            mx.save_safetensors(str(file), sharp)
    return {kind: root / kind for kind in ("float32", "bfloat16")}


def last_step(tmp_path: Path, model: Path, *options: str) -> Mapping[str, Any]:
    run = tmp_path / "run"
    (tmp_path / "vowels.py").write_text(ARENA)
    small = ["--play.tasks-per-step", "4", "--play.group-size", "4", "--loop.evaluation-plays", "1"]
    settings = ["--steps", "2", "--deterministic", "--training.loss", "gspo", *small]
    chosen = ["--model", str(model), "--arena", f"{tmp_path}/vowels.py:Vowels", "--out", str(run)]
    assert main(["train", *chosen, *settings, *options]) == 0
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "mismatch_k3" in line][-1]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_on_the_cpu_sampler_and_trainer_agree(
    models: Mapping[str, Path], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = last_step(tmp_path, models[kind])
    assert found["staleness_max"] == 0
    exact = kind == "float32"  # in 16 bits the engine rounds LoRA, and the trainer does not
    assert abs(found["mismatch_k3"]) < (1e-7 if exact else 0.01)
    assert found["logprob_gap"] < (1e-5 if exact else 0.1)
    notice = "the base computes in bfloat16: the ratio is to the trainer's own probabilities"
    assert (notice in capsys.readouterr().out) == (kind == "bfloat16")


@pytest.mark.nightly
@pytest.mark.parametrize("loss", ["ppo", "gspo", "gmpo", "reinforce"])
def test_in_16_bits_the_rounding_of_a_gpu_is_corrected_and_clips_nothing(
    models: Mapping[str, Path], loss: Any
) -> None:
    """The engine's log-probabilities differ by the noise that bfloat16 has on a GPU."""
    clipped: dict[str | None, float] = {}
    for anchor in (None, "behaviour"):
        config = TrainingConfig(loss=loss, anchor=anchor, kl_coef=0.0)
        trainer = Trainer(model=load_model(models["bfloat16"], inline=True), config=config)
        rng = np.random.default_rng(0)
        drawn = [make_sample(rng.integers(1, 40, 30).tolist(), positions=range(5, 30))] * 8
        exact = logprobs_of(trainer.backend, drawn)
        noisy = [
            replace(sample, logprobs=tuple((own + rng.normal(0, 0.1, len(own))).tolist()))
            for sample, own in zip(drawn, exact, strict=True)
        ]
        batch = Group(samples=tuple(noisy), episodes=(), tokens_generated=8 * 25)
        metrics = trainer.train_step(batch)
        trainer.close()
        assert 1e-3 < (metrics["mismatch_k3"] or 0) < 0.1
        clipped[anchor] = metrics["clip_fraction"] or 0.0
    assert clipped[None] == 0
    assert (clipped["behaviour"] > 0) == (loss in ("ppo", "gspo"))
