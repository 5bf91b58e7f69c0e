"""Whole optimiser steps: what is trained gets likelier, also on quantised weights and by layers."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from backend_steps import Stepped, check_stops, optimiser_step
from mlx.utils import tree_flatten
from mlx_backends import tree_backend
from mlx_lm.models import qwen3_5
from mlx_lm.models.gated_delta import gated_delta_update
from random_samples import random_samples
from safetensors.numpy import load_file
from tiny_models import write_any_model

from legos.device.backend import LoraBackend
from legos.device.worker import ThreadWorker
from legos.errors import CheckpointError, TrainerError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train import passes, step_gradients
from legos.records.sample import Sample
from legos.records.step import BackendConfig, Update
from legos.weights.adapter import LoraShape

TOKENS = (5, 6, 7, 8, 9, 10, 11)
PROMPT = 3


def tree_of(folder: Path) -> tuple[Any, LoraShape]:
    tree: Any = load_tree(folder)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False)
    add_lora(tree, shape, seed=0)
    return tree, shape


def make_backend(folder: Path, **options: Any) -> tuple[Any, LoraBackend]:
    tree, shape = tree_of(folder)
    return tree, tree_backend(tree, shape, BackendConfig(**options))


def logprob(tree: Any) -> float:
    """Mean log-probability of the completion."""
    logits = np.array(tree(mx.array([TOKENS[:-1]]))[0].astype(mx.float32))[PROMPT - 1 :]
    targets = TOKENS[PROMPT:]
    normaliser = np.log(np.exp(logits).sum(axis=1))
    return float(np.mean(logits[np.arange(len(targets)), targets] - normaliser))


def sample_of(logprobs: float, advantages: float = 1.0) -> Sample:
    return make_sample(
        TOKENS, positions=range(PROMPT, len(TOKENS)), logprobs=logprobs, advantages=advantages
    )


def step_on(
    backend: LoraBackend,
    sample: Sample,
    *,
    weights: Any = None,
    update: Mapping[str, Any] | None = None,
    threshold: float = 1.0,
    **objective: Any,
) -> Stepped:
    objective.setdefault("loss", "reinforce")
    return optimiser_step(
        backend,
        [sample],
        Objective(**objective),
        weights=weights,
        update=Update(learning_rate=1e-2, **(update or {})),
        clip_skip_threshold=threshold,
    )


def step(tree: Any, backend: LoraBackend) -> Stepped:
    return step_on(backend, sample_of(logprob(tree)))


def saved(backend: LoraBackend, folder: Path, file: str) -> Mapping[str, Any]:
    """What a checkpoint holds."""
    folder.mkdir()
    backend.snapshot().result()(folder)
    return load_file(folder / file)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_what_is_rewarded_gets_likelier(
    tmp_path: Path, bits: int | None, gradient_checkpointing: bool
) -> None:
    folder = write_any_model(tmp_path / "model", bits=bits)
    tree, backend = make_backend(folder, gradient_checkpointing=gradient_checkpointing)
    before = [logprob(tree)]
    for number in range(6):
        result = step(tree, backend)
        assert result.reason is None
        assert result.metrics["grad_norm"] > 0
        assert backend.adapter().version == number + 1
        before.append(logprob(tree))
    assert before == sorted(before)
    assert before[-1] > before[0] + 0.5


def test_a_step_calls_neither_a_kernel_without_a_gradient_nor_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's tree computes the gated delta rule in chunks, and the engine's as before."""
    tree, backend = make_backend(write_any_model(tmp_path, architecture="qwen3_5"))
    kernels: list[bool] = []

    def spy(*args: Any, use_kernel: bool = True, **options: Any) -> Any:
        kernels.append(use_kernel)
        return gated_delta_update(*args, use_kernel=use_kernel, **options)

    monkeypatch.setattr(qwen3_5, "gated_delta_update", spy)
    step(tree, backend)
    assert not kernels
    tree = load_tree(tmp_path)
    tree(mx.array([TOKENS]))
    assert set(kernels) == {True}


def test_dropout_of_a_model_stays_off(tmp_path: Path) -> None:
    tree: Any = load_tree(write_any_model(tmp_path, architecture="qwen2"))
    tree.layers[0].dropout = nn.Dropout(0.5)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False)
    add_lora(tree, shape, seed=0)
    tree_backend(tree, shape)
    x = mx.ones(100)
    assert mx.array_equal(tree.layers[0].dropout(x), x)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_gradients_are_scaled_down_to_the_norm(tmp_path: Path, limit: float) -> None:
    _, backend = make_backend(write_any_model(tmp_path / "model"), betas=(0.75, 0.95))
    norm = step_on(backend, sample_of(-3.0), update={"max_grad_norm": limit}).metrics["grad_norm"]
    assert 1e-2 < norm < 1e2  # before it is scaled down
    state = saved(backend, tmp_path / "saved", "optimiser.safetensors")
    moments = [array for name, array in state.items() if name.endswith(".m")]
    found = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in moments))
    assert found == pytest.approx(0.25 * min(limit, norm), rel=1e-4)


@pytest.mark.parametrize(
    "weight",
    [
        np.inf,
        1e30,  # the loss is finite, the norm of its gradient is not
    ],
)
def test_what_is_not_finite_never_reaches_the_weights(tmp_path: Path, weight: float) -> None:
    tree, backend = make_backend(write_any_model(tmp_path / "model"))
    step(tree, backend)
    before = saved(backend, tmp_path / "before", "adapter.safetensors")
    result = step_on(backend, sample_of(-3.0), weights=[weight])
    assert (result.reason, backend.adapter().version) == ("non_finite", 1)
    after = saved(backend, tmp_path / "after", "adapter.safetensors")
    assert {name: array.tolist() for name, array in after.items()} == {
        name: array.tolist() for name, array in before.items()
    }
    assert step(tree, backend).reason is None


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_step_is_skipped_for_clipped_tokens_of_either_sign(
    tmp_path: Path, advantage: float
) -> None:
    tree, backend = make_backend(write_any_model(tmp_path / "model"))
    far = logprob(tree) - 8.0 if advantage > 0 else 0.0
    result = step_on(backend, sample_of(far, advantage), loss="ppo", threshold=0.9)
    assert result.metrics["clip_fraction"] == 1.0
    assert (result.reason, backend.adapter().version) == ("clip_skip", 0)


def test_the_average_keeps_its_share_of_the_past(tmp_path: Path) -> None:
    _, backend = make_backend(write_any_model(tmp_path / "model"))
    trained = [{name: np.array(array) for name, array in backend.adapter().arrays.items()}]
    for _ in range(2):
        step_on(backend, sample_of(-3.0), ema_kl_coef=0.1, update={"ema_decay": 0.75})
        trained.append({name: np.array(array) for name, array in backend.adapter().arrays.items()})
    average = saved(backend, tmp_path / "saved", "ema.safetensors")
    for name, found in average.items():
        first, second, third = (arrays[name] for arrays in trained)
        expected = 0.75 * (0.75 * first + 0.25 * second) + 0.25 * third
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_restored_backend_pulls_to_the_same_average(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path / "model")
    pull: Mapping[str, Any] = {"ema_kl_coef": 0.1, "update": {"ema_decay": 0.75}}
    _, whole = make_backend(folder)
    first = step_on(whole, sample_of(-3.0), **pull)
    assert first.metrics["ema_kl_divergence"] == 0.0  # there is no past yet
    (tmp_path / "saved").mkdir()
    whole.snapshot().result()(tmp_path / "saved")
    _, resumed = make_backend(folder)
    resumed.restore(tmp_path / "saved")
    expected = step_on(whole, sample_of(-3.0), **pull).metrics
    assert abs(expected["ema_kl_divergence"]) > 1e-3
    assert step_on(resumed, sample_of(-3.0), **pull).metrics == expected


def test_a_snapshot_is_of_its_step_and_is_written_by_any_thread(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path / "model")
    worker = ThreadWorker("trainer", mx.clear_streams)
    tree, shape = worker.call(tree_of, folder).result()
    backend = tree_backend(tree, shape, worker=worker)
    pull: Mapping[str, Any] = {"ema_kl_coef": 0.1, "update": {"ema_decay": 0.75}}
    step_on(backend, sample_of(-3.0), **pull)
    write = backend.snapshot().result()
    before = backend.adapter().digest
    expected = step_on(backend, sample_of(-3.0), **pull).metrics
    (tmp_path / "saved").mkdir()
    write(tmp_path / "saved")
    _, resumed = make_backend(folder)
    resumed.restore(tmp_path / "saved")
    assert resumed.adapter().digest == before != backend.adapter().digest
    assert step_on(resumed, sample_of(-3.0), **pull).metrics == expected
    worker.close()


def test_the_checkpoint_of_another_lora_is_named(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path / "model")
    tree, backend = make_backend(folder)
    saved(backend, tmp_path / "saved", "optimiser.safetensors")
    other: Any = load_tree(folder)
    shape = lora_shape(other, rank=2, alpha=8.0, num_layers=2, head=False)
    add_lora(other, shape, seed=0)
    with pytest.raises(CheckpointError, match=r"cannot be restored.*the rank with which it was"):
        tree_backend(other, shape).restore(tmp_path / "saved")
    backend.restore(tmp_path / "saved")
    assert step(tree, backend).reason is None  # and goes on as it was


FAULT = "[METAL] Command buffer execution failed: Insufficient Memory (OutOfMemory)"


def failing_at(
    number: int, monkeypatch: pytest.MonkeyPatch, *, times: int = 1, late: bool = False
) -> list[int]:
    """Makes some calls of ``mx.eval`` fail after they have evaluated; returns their count.

    A late error is raised by the next call that waits for the device, and the arrays of the call
    that failed are not numbers.
    """
    calls, pending = [0], list[str]()
    evaluate, synchronise = mx.eval, mx.synchronize

    def wait() -> None:
        synchronise()
        if pending:
            raise RuntimeError(pending.pop())

    def fail(*arrays: Any) -> None:
        wait()
        evaluate(*arrays)
        calls[0] += 1
        if not number <= calls[0] < number + times:
            return
        if not late:
            raise RuntimeError(FAULT)
        pending.append(FAULT)
        flat: Any = tree_flatten(arrays)
        for _, array in flat:
            array[...] = mx.zeros_like(array) / 0
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", fail)
    monkeypatch.setattr(mx, "synchronize", wait)
    return calls


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_device_that_fails_once_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, late: bool
) -> None:
    folder = write_any_model(tmp_path / "model")
    whole = make_backend(folder)[1]
    tree, backend = make_backend(folder)
    sample = sample_of(logprob(tree))
    expected = [step_on(whole, sample).metrics["loss"] for _ in range(3)]
    step_on(backend, sample)
    with monkeypatch.context() as patch:
        calls = failing_at(number, patch, late=late)
        found = [step_on(backend, sample).metrics["loss"] for _ in range(2)]
    assert calls[0] >= number
    assert found == pytest.approx(expected[1:], rel=1e-6)
    assert backend.adapter().version == whole.adapter().version == 3
    ours, theirs = (
        saved(one, tmp_path / name, "optimiser.safetensors")
        for one, name in ((backend, "ours"), (whole, "theirs"))
    )
    for key, array in theirs.items():
        np.testing.assert_allclose(ours[key], array, rtol=1e-5, atol=1e-9)


def test_in_float16_the_gradient_is_proportional_to_the_weight_of_a_token(tmp_path: Path) -> None:
    """A step has tens of thousands of tokens, and float16 no numbers below 6e-8."""
    tree: Any = load_tree(write_any_model(tmp_path / "model"))
    tree.set_dtype(mx.float16)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False)
    add_lora(tree, shape, seed=0)
    backend, sample = tree_backend(tree, shape), sample_of(logprob(tree))
    found = [
        backend.forward_backward([sample], [weight], Objective()).result()
        for weight in (1.0, 2.0**-20)
    ]
    assert found[1].grad_norm == pytest.approx(2.0**-20 * found[0].grad_norm, rel=1e-5)
    assert found[1].loss == pytest.approx(2.0**-20 * found[0].loss, rel=1e-5)


@pytest.mark.parametrize("late", [False, True])
def test_a_device_that_keeps_failing_leaves_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    tree, backend = make_backend(write_any_model(tmp_path / "model"))
    sample = sample_of(logprob(tree))
    step_on(backend, sample)
    files = ("optimiser.safetensors", "adapter.safetensors")
    before = [saved(backend, tmp_path / f"before {file}", file) for file in files]
    with monkeypatch.context() as patch:
        failing_at(1, patch, times=1000, late=late)
        with pytest.raises(TrainerError, match=r"the GPU ran out of memory; lower training\.mem"):
            step_on(backend, sample)
    passed = backend.forward_backward([sample], [1.0], Objective(loss="reinforce")).result()
    assert passed.grad_norm > 0
    with monkeypatch.context() as patch:
        failing_at(1, patch, times=1000, late=late)
        with pytest.raises(TrainerError, match="the device failed"):
            backend.optim_step(Update(learning_rate=1e-2)).result()
    assert backend.adapter().version == 1
    after = [saved(backend, tmp_path / f"after {file}", file) for file in files]
    for ours, theirs in zip(after, before, strict=True):
        assert all(np.array_equal(ours[key], array) for key, array in theirs.items())
    step_on(backend, sample)
    assert backend.adapter().version == 2


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("options", [{}, {"micro_batch_tokens": 8, "gradient_checkpointing": True}])
def test_after_a_step_the_tree_has_its_own_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], failing: bool
) -> None:
    """Also where carried prefixes are differentiated, and where the device fails in a pass."""
    tree, backend = make_backend(write_any_model(tmp_path / "model"), **options)
    own = dict(tree_flatten(tree.trainable_parameters()))
    samples = [make_sample((*range(2, 18), end, end + 1), positions=(16, 17)) for end in (20, 30)]
    if failing:
        monkeypatch.setattr(passes, "head_loss", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError) if failing else nullcontext():
        backend.forward_backward(samples, [1.0, 1.0], Objective()).result()
    after = dict(tree_flatten(tree.trainable_parameters()))
    assert all(after[name] is array for name, array in own.items())


def test_passes_are_as_large_again_a_while_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_gradients, "RECOVERY", 3)
    told: list[str] = []
    folder = write_any_model(tmp_path / "model")
    tree, backend = make_backend(folder, micro_batch_tokens=256, report=told.append)
    sample = sample_of(logprob(tree))
    step_on(backend, sample)
    with monkeypatch.context() as patch:
        failing_at(1, patch)
        step_on(backend, sample)
    for _ in range(3):
        step_on(backend, sample)
    tokens = [line.partition(" of ")[0].rpartition(" ")[2] for line in told]
    assert tokens == ["256", "128", "256"]


def test_a_step_can_be_stopped_before_each_pass(tmp_path: Path) -> None:
    """Also before the prefixes that several passes continue, and that have a pass of their own."""
    _, backend = make_backend(write_any_model(tmp_path / "model"), micro_batch_tokens=8)
    samples = random_samples(np.random.default_rng(0), num_samples=6, vocab=40, max_length=9)
    for end in range(20, 24):
        samples.append(make_sample((*range(2, 18), end, end + 1), positions=(16, 17)))
    assert check_stops(backend, samples, Objective(kl_coef=0.1)) > 4
