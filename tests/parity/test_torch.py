"""Torch against MLX: log-probabilities, losses, gradients, updates and checkpoints of one model.

A step's gradient is read from its checkpoint: with a first beta of 0, AdamW's first moment is the
gradient.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from backend_steps import Arrays, compute, logprobs_of, saved
from made_records import make_episode, make_turn
from objectives import EVERY_OBJECTIVE
from random_samples import random_samples
from safetensors.numpy import load_file
from tiny_models import write_any_model

from legos.builtin import builtin_path
from legos.credit import RULES, make_credit
from legos.credit.merging import samples_of_rollout
from legos.losses.objective import Objective
from legos.records.episode import Turn
from legos.records.sample import Sample
from legos.records.step import BackendConfig, Update
from legos.weights.policy_state import PolicyState, write_policy_state
from legos.wiring.model import apply_lora, load_model

pytestmark = pytest.mark.torch  # imported by the first test, not by every worker

Name = Literal["mlx", "torch"]
VOCAB = 40
UNBOUNDED = Update(learning_rate=1e-2, max_grad_norm=1e9)


class Pair(NamedTuple):
    """The backends of both devices on one model, in which every LoRA array is random."""

    mlx: Any
    torch: Any
    state: Path  # checkpoint from which both start

    def restore(self) -> None:
        """Bring both to the same state, with an EMA that differs from the policy."""
        self.mlx.restore(self.state)
        self.torch.restore(self.state)


def backend_of(folder: Path, device: Name, *, head: bool = True, **options: Any) -> Any:
    model = load_model(folder, inline=True, device=device)
    apply_lora(model, rank=4, layers=8, alpha=8.0, head=head)
    return model.make_backend(BackendConfig(**options))


def write_state(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A checkpoint after three updates, of random arrays."""
    rng = np.random.default_rng(5)

    def draw(scale: float) -> dict[str, Any]:
        return {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}

    moments = {f"{name}.m": 0.1 * array for name, array in draw(0.01).items()}
    moments |= {f"{name}.v": np.square(array) for name, array in draw(0.01).items()}
    folder.mkdir()
    state = PolicyState(
        name="policy", version=3, updates=3, adapter=draw(0.1), ema=draw(0.1), moments=moments
    )
    write_policy_state(state, folder)
    return folder


def make_pair(model: Path, state: Path, **options: Any) -> Pair:
    mlx, torch = (backend_of(model, device, **options) for device in ("mlx", "torch"))
    shapes = {name: tuple(array.shape) for name, array in mlx.adapter().arrays.items()}
    return Pair(mlx, torch, write_state(state, shapes))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    model = write_any_model(folder / "model", architecture="llama")
    return make_pair(model, folder / "state", betas=(0.0, 0.95))


def some_samples(seed: int = 7, num_samples: int = 12) -> list[Sample]:
    """Samples of all kinds of support and several temperatures; some share their row."""
    return random_samples(
        np.random.default_rng(seed),
        num_samples=num_samples,
        vocab=VOCAB,
        max_length=9,
        support="mixed",
        temperatures=(0.7, 1.0),
    )


def distance(found: Arrays, expected: Arrays) -> float:
    """Norm of the difference over the norm of what is expected."""
    assert sorted(found) == sorted(expected)
    gap, size = 0.0, 0.0
    for name, array in expected.items():
        gap += float(np.square(found[name].astype(np.float64) - array).sum())
        size += float(np.square(array.astype(np.float64)).sum())
    return (gap / size) ** 0.5


def compared(pair: Pair, samples: list[Sample], objective: Objective, folder: Path) -> None:
    """Check loss, sums, log-probabilities, gradients and the update of one step."""
    pair.restore()
    expected, found = (compute(each, samples, objective) for each in (pair.mlx, pair.torch))
    assert found.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
    assert found.sums == pytest.approx(expected.sums, rel=1e-4, abs=1e-4)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    for one, other in zip(found.entropies, expected.entropies, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    for each in (pair.mlx, pair.torch):
        each.optim_step(UNBOUNDED).result()
        assert each.adapter().version == 4
    states = [saved(each, folder / name) for name, each in (("m", pair.mlx), ("t", pair.torch))]
    gradients = [
        {name: array for name, array in state["optimiser"].items() if name.endswith(".m")}
        for state in states
    ]
    assert distance(gradients[1], gradients[0]) < 1e-4
    for file in ("adapter", "ema", "optimiser"):
        assert distance(states[1][file], states[0][file]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_OBJECTIVE)
def test_a_step_with_every_objective(name: str, pair: Pair, tmp_path: Path) -> None:
    compared(pair, some_samples(), EVERY_OBJECTIVE[name], tmp_path)


MODELS: Mapping[str, Callable[[Path], Path]] = {
    "builtin": lambda _: Path(builtin_path()),
    "qwen2": lambda folder: write_any_model(folder, architecture="qwen2"),
    "qwen3": lambda folder: write_any_model(folder, architecture="qwen3"),
    "gemma3_text": lambda folder: write_any_model(
        folder,
        architecture="gemma3_text",
        hidden=64,  # mlx-lm rounds its root to bfloat16
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_every_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path / "model")
    pair = make_pair(model, tmp_path / "state", betas=(0.0, 0.95), micro_batch_tokens=24)
    objective = Objective(kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.1)
    compared(pair, some_samples(), objective, tmp_path)


# A device sees nothing of a rule but its advantages; those of "turn" differ within a sample.
CREDITS = [r if r == "turn" else pytest.param(r, marks=pytest.mark.nightly) for r in RULES]


@pytest.mark.slow
@pytest.mark.parametrize("name", CREDITS)
def test_a_step_with_every_credit_rule(name: str, pair: Pair, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)

    def turns() -> list[Turn]:
        return [
            make_turn(
                (3, 4, 5 + number),  # plays have the same prompts, as some rules need it
                rng.integers(1, VOCAB, 3).tolist(),
                logprob=-2.0,
                reward=float(rng.integers(0, 2)),
            )
            for number in range(2)
        ]

    tasks = ("one", "one", "one", "two", "two")
    episodes = [
        make_episode(
            {"a": float(n % 2), "b": n / 3.0}, task=task, turns={"a": turns(), "b": turns()}
        )
        for n, task in enumerate(tasks)
    ]
    rule = make_credit(name)
    found = [list(zip(episodes, rule.assign(episodes), strict=True)) for _ in range(2)][-1]
    samples: list[Sample] = []
    for episode, advantages in found:
        for rollout in episode.rollouts:
            of_turns = advantages[rollout.role]
            samples += samples_of_rollout(rollout, of_turns, group=episode.task.id)
    drawn = {advantage for sample in samples for advantage in sample.advantages}
    assert drawn == {1.0} if name == "imitation" else len(drawn) > 2
    compared(pair, samples, Objective(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "gspo", "kl_k2", "kl_exact", "entropy"])
def test_the_size_of_the_heads_chunks_changes_nothing(
    name: str, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.torch.gradients.CHUNK_LOGITS", {"cpu": 1})
    monkeypatch.setattr("legos.torch.gradients.MIN_POSITIONS", 3)
    model = write_any_model(tmp_path / "model", architecture="llama")
    chunked = backend_of(model, "torch", betas=(0.0, 0.95), gradient_checkpointing=True)
    samples, objective = some_samples(), EVERY_OBJECTIVE[name]
    compared(pair._replace(torch=chunked), samples, objective, tmp_path / "saved")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at_once"), [("gspo", True), ("kl_k2", True), ("entropy", False)])
def test_a_head_without_lora_has_its_gradients_with_the_values_where_one_term_has_any(
    name: str, at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.torch.gradients.CHUNK_LOGITS", {"cpu": 1})
    monkeypatch.setattr("legos.torch.gradients.MIN_POSITIONS", 3)
    from legos.torch import gradients

    computed: list[int] = []
    compute_chunk = gradients._at_once

    def counting(*arguments: Any) -> dict[str, Any]:
        computed.append(len(arguments[1]))
        return compute_chunk(*arguments)

    monkeypatch.setattr(gradients, "_at_once", counting)
    model = write_any_model(tmp_path / "model", architecture="llama")
    pair = make_pair(model, tmp_path / "state", betas=(0.0, 0.95), head=False)
    compared(pair, some_samples(), EVERY_OBJECTIVE[name], tmp_path / "saved")
    assert bool(computed) == at_once


def test_log_probabilities_of_the_policy_and_of_its_reference(pair: Pair) -> None:
    pair.restore()
    samples = some_samples(3)
    values: list[Any] = []
    for reference in (False, True):
        expected, found = (
            np.concatenate(logprobs_of(each, samples, reference=reference))
            for each in (pair.mlx, pair.torch)
        )
        assert found == pytest.approx(expected, abs=1e-4)
        values.append(found)
    assert np.abs(values[0] - values[1]).max() > 0.1


@pytest.mark.slow
def test_a_run_that_changes_its_device_twice_equals_one_that_does_not(tmp_path: Path) -> None:
    model = write_any_model(tmp_path / "model", architecture="qwen3")
    mlx, torch, _ = make_pair(model, tmp_path / "state")
    update = Update(learning_rate=3e-3, max_grad_norm=0.5, ema_decay=0.9, kl_refresh_steps=5)
    objective = Objective(kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.05)

    def steps(backend: Any, numbers: range) -> None:
        for number in numbers:
            compute(backend, some_samples(number, 4), objective)
            backend.optim_step(update).result()

    mlx.restore(tmp_path / "state")
    steps(mlx, range(20))
    expected = saved(mlx, tmp_path / "whole")
    mlx.restore(tmp_path / "state")
    steps(mlx, range(7))
    saved(mlx, tmp_path / "at7")
    torch.restore(tmp_path / "at7")
    steps(torch, range(7, 14))
    saved(torch, tmp_path / "at14")
    mlx.restore(tmp_path / "at14")
    steps(mlx, range(14, 20))
    found = saved(mlx, tmp_path / "split")
    assert sorted(found) == ["adapter", "ema", "optimiser", "reference"]
    start = load_file(tmp_path / "state" / "adapter.safetensors")
    assert distance(expected["adapter"], start) > 0.1
    for file, arrays in expected.items():
        assert distance(found[file], arrays) < 1e-4, file
