"""Memory is planned before the first step, and passes shrink to stay below the ceiling."""

import gc
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from mlx.utils import tree_flatten
from tiny_models import write_any_model

from legos import Trainer, TrainingConfig, apply_lora, load_model
from legos.device.gradients import StepResult
from legos.device.groups import of_groups
from legos.errors import TrainerError
from legos.fakes import make_sample
from legos.losses.metrics import SUMS
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import small_model
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.machine import num_bytes, peak_bytes
from legos.mlx.train import step_gradients
from legos.mlx.train.step_gradients import StepGradients
from legos.records.group import Group
from legos.records.packing import StepSamples, step_rows
from legos.records.sample import Sample
from legos.records.step import BackendConfig

KEEP = Objective()
MIB = 1 << 20


def test_a_low_ceiling_makes_passes_smaller_and_changes_nothing_else(
    tiny_models: Mapping[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    tree = lora_tree(tiny_models["llama"])
    rng = np.random.default_rng(0)
    samples = [make_sample(rng.integers(1, 40, 100).tolist()) for _ in range(32)]
    step = whole(samples)
    found: list[dict[str, mx.array]] = []
    peaks: list[int] = []
    for ceiling in (1 << 40, mx.get_active_memory() + (16 << 20)):
        gradients = gradients_of(tree, 4096, ceiling)
        with caplog.at_level(logging.INFO):
            gradients.of_step(step, Objective(), {})  # the plan
        peaks.append(
            peak_bytes(
                lambda gradients=gradients: found.append(
                    dict(tree_flatten(gradients.of_step(step, Objective(), {}).gradients))
                )
            )
        )
        assert gradients.memory is not None
    assert "4096 of 4096 tokens at once" in caplog.text
    assert "512 of 4096 tokens at once" in caplog.text
    assert peaks[1] < 0.5 * peaks[0]
    assert peaks[1] < 16 << 20
    for name, array in found[0].items():
        assert np.array(found[1][name]) == pytest.approx(np.array(array), rel=1e-4, abs=1e-8)


def test_carried_prefixes_keep_no_activations_of_layers_without_lora(tmp_path: Path) -> None:
    tree: Any = load_tree(write_any_model(tmp_path, layers=8))
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=1, head=False), seed=0)
    rng = np.random.default_rng(0)
    prompt = rng.integers(1, 40, 60).tolist()
    step = whole([make_sample([*prompt, *rng.integers(1, 40, 60).tolist()]) for _ in range(16)])
    peaks: list[int] = []
    for max_tokens in (480, 4096):  # the prompt is carried to two passes; or is part of one
        gradients = gradients_of(tree, max_tokens)
        peaks.append(peak_bytes(lambda g=gradients: g.of_step(step, Objective(), {})))
    assert peaks[0] < peaks[1]


@pytest.mark.nightly
def test_logits_that_cannot_be_sampled_take_memory_too(tmp_path: Path) -> None:
    """A padded head computes them all the same."""
    folder = write_any_model(tmp_path / "model", vocab=100_000)
    rows = [[first, *range(1, 90)] for first in range(1, 5)]
    step = whole([make_sample(row, positions=range(9, 90)) for row in rows])
    peaks = []
    for known in (None, 100):
        gradients = gradients_of(lora_tree(folder), num_vocabulary=known)
        peaks.append(peak_bytes(lambda g=gradients: g.of_step(step, KEEP, {})))
    assert peaks[1] <= 1.1 * peaks[0]


@pytest.mark.parametrize("architecture", ["internlm2", "minicpm"])
def test_logits_of_all_positions_count_where_trunk_and_head_are_not_split(
    architecture: str,
) -> None:
    """Of internlm2 no head is found; that of minicpm does not reproduce the model's logits."""
    tree, room = small_model(architecture, vocab_size=4096), 100 << 20
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False), seed=0)
    before = mx.get_active_memory()
    gradients = gradients_of(tree, 4096, before + room)
    tokens = np.random.default_rng(0).integers(1, 40, (24, 100)).tolist()
    step = whole([make_sample(row, positions=range(1, 100)) for row in tokens])
    found = gradients.of_step(step, KEEP, {})
    assert found.row_limit is None
    assert (found.peak_bytes or 0) - before < room


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("checkpointing", "room"), [(False, 50 << 20), (True, 30 << 20)])
def test_copies_of_a_long_prompt_for_many_short_answers_stay_below_the_ceiling(
    checkpointing: bool, room: int
) -> None:
    """Every row gets the keys and values of its prompt, so few rows are computed at once."""
    tree = small_model("llama", hidden_size=64, num_attention_heads=4, num_key_value_heads=4)
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=8, head=False), seed=0)
    tokens = np.random.default_rng(0).integers(1, 40, 600 + 64 * 4).tolist()
    samples = [
        make_sample(tokens[:600] + tokens[end - 4 : end], positions=range(600, 604))
        for end in range(604, 860, 4)
    ]
    found: list[StepResult] = []
    for ceiling in (1 << 40, mx.get_active_memory() + room):
        gradients = gradients_of(tree, 512, ceiling, gradient_checkpointing=checkpointing)
        before = mx.get_active_memory()
        found.append(gradients.of_step(whole(samples), KEEP, {}))
        assert found[-1].row_limit is None
    assert (found[0].peak_bytes or 0) - before > room
    assert (found[1].peak_bytes or 0) - before < room
    assert found[1].logprobs == pytest.approx(found[0].logprobs, abs=1e-5)
    for name, array in found[0].gradients.items():
        assert np.array(found[1].gradients[name]) == pytest.approx(np.array(array), abs=1e-6)


def gradients_of(
    tree: Any, tokens: int | None = None, limit: int | None = None, **settings: Any
) -> StepGradients:
    config = BackendConfig(micro_batch_tokens=tokens, memory_limit_bytes=limit, **settings)
    return StepGradients(tree, config)


def whole(samples: Sequence[Sample]) -> StepSamples:
    return StepSamples(samples=samples, weights=normalisation_weights(samples, "token"))


def lora_tree(folder: Path) -> Any:
    tree: Any = load_tree(folder)
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True), seed=0)
    return tree


def random_samples_of(lengths: Sequence[int]) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [make_sample(rng.integers(1, 40, length).tolist()) for length in lengths]


def test_rows_that_do_not_fit_alone_are_left_out_and_counted(
    tiny_models: Mapping[str, Path],
) -> None:
    tree = lora_tree(tiny_models["llama"])
    samples = random_samples_of([60, 3000, 80, 2900])
    step = whole(samples)
    told: list[str] = []
    held = mx.get_active_memory()
    limits: Any = {"micro_batch_tokens": 4096, "memory_limit_bytes": held + (40 << 20)}
    config = BackendConfig(**limits, report=told.append)
    gradients = StepGradients(tree, config, held_bytes=lambda: held)
    peak = peak_bytes(lambda: gradients.of_step(step, KEEP, {}))
    assert peak < 40 << 20
    assert len(told) == 1
    assert "do not fit and are left out (the longest has 2999)" in told[0]
    found = gradients.of_step(step, KEEP, {})
    assert 512 < (found.row_limit or 0) < 2900
    assert len(told) == 1  # the plan holds
    short = step.no_longer_than(100)
    assert short == StepSamples(samples=samples[::2], weights=step.weights[::2])
    # What the others weighed is not shared out among those that are left.
    expected = gradients_of(tree, 4096).of_step(short, KEEP, {})
    assert found.loss == pytest.approx(expected.loss, abs=1e-7)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert found.entropies == pytest.approx(expected.entropies, abs=1e-5)
    named = dict(tree_flatten(found.gradients))
    for name, array in dict(tree_flatten(expected.gradients)).items():
        assert np.array(named[name]) == pytest.approx(np.array(array), rel=1e-4, abs=1e-8)


def test_a_row_that_does_not_fit_is_left_out_of_its_group(tiny_models: Mapping[str, Path]) -> None:
    tree = lora_tree(tiny_models["llama"])
    objective = Objective(loss="online_dpo")
    samples = [
        msgspec.structs.replace(sample, advantages=(float(number),))
        for number, sample in enumerate(random_samples_of([60, 3000, 80, 2900]))
    ]
    ceiling = mx.get_active_memory() + (40 << 20)
    few, many = (gradients_of(tree, 4096, c) for c in (ceiling, None))

    def groups(gradients: StepGradients, step: StepSamples) -> StepResult:
        return of_groups(gradients, lambda s: gradients.of_step(s, objective, {}), step, objective)

    found, expected = groups(few, whole(samples)), groups(many, whole(samples).no_longer_than(100))
    assert found.row_limit is not None
    assert found.loss == pytest.approx(expected.loss, abs=1e-7)
    for name, array in expected.gradients.items():
        assert np.array(found.gradients[name]) == pytest.approx(np.array(array), rel=1e-4, abs=1e-8)


def test_a_sample_left_out_of_its_group_is_named_where_it_would_fit_afterwards(
    tiny_models: Mapping[str, Path],
) -> None:
    tree = lora_tree(tiny_models["llama"])
    step, objective = whole(random_samples_of([60, 3000])), Objective(loss="online_dpo")
    active = mx.get_active_memory()
    ceiling = active + (40 << 20)
    held = iter((active + (20 << 20), active))  # an engine's caches go between the two passes
    gradients = StepGradients(
        tree, BackendConfig(memory_limit_bytes=ceiling), held_bytes=lambda: next(held)
    )
    limits: list[int | None] = []

    def passes(step: StepSamples) -> StepResult:
        found = gradients.of_step(step, objective, {})
        limits.append(found.row_limit)
        return found

    found = of_groups(gradients, passes, step, objective)
    assert limits[0] is not None
    assert found.row_limit == limits[0] < (limits[1] or 3000)


def test_only_samples_that_read_too_far_go_and_what_nobody_else_reads() -> None:
    row = tuple(range(1, 12))
    near, far = make_sample(row, positions=(2, 5)), make_sample(row, positions=(2, 10))
    own, short = make_sample(range(20, 30)), make_sample((7, 8))
    step = StepSamples(samples=[near, far, own, short], weights=[0.1, 0.2, 0.3, 0.4])
    kept = step.no_longer_than(5)
    assert kept == StepSamples(samples=[near, short], weights=[0.1, 0.4])
    rows = step_rows(kept.samples)
    assert [tuple(tokens.tolist()) for tokens in rows.tokens] == [row[:5], (7,)]
    assert rows.samples == ((0,), (1,))
    assert step_rows(step.samples).samples == ((0, 1), (2,), (3,))
    assert step.no_longer_than(0).samples == []


def test_a_row_longer_than_the_budget_is_a_pass_of_its_own(
    tiny_models: Mapping[str, Path],
) -> None:
    tree = lora_tree(tiny_models["llama"])
    samples = random_samples_of([300, 20, 20, 700])
    split = gradients_of(tree, 64)
    found = split.of_step(whole(samples), KEEP, {})
    assert found.row_limit is None
    together = gradients_of(tree, 4096).of_step(whole(samples), KEEP, {})
    assert found.loss == pytest.approx(together.loss, abs=1e-7)
    assert found.sums == pytest.approx(together.sums, rel=1e-5)
    assert found.logprobs == pytest.approx(together.logprobs, abs=1e-5)
    assert found.entropies == pytest.approx(together.entropies, abs=1e-5)
    assert found.entropies.sum() == pytest.approx(found.sums[SUMS.index("entropy")], rel=1e-5)


def test_a_step_of_which_nothing_fits_tells_what_to_do(tiny_models: Mapping[str, Path]) -> None:
    tree = lora_tree(tiny_models["llama"])
    step = whole(random_samples_of([60]))
    gradients = gradients_of(tree, 64, 1)
    with pytest.raises(TrainerError, match=r"no sample of this step fits into memory: .*higher"):
        gradients.of_step(step, KEEP, {})


def test_a_peak_that_an_engine_may_have_caused_leaves_no_sample_out(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes get smaller for a while, and then as large again."""
    monkeypatch.setattr(step_gradients, "RECOVERY", 2)
    tree = lora_tree(tiny_models["llama"])
    step = whole(random_samples_of([60] * 30 + [3000]))
    told: list[str] = []
    gc.collect()  # or arrays of other tests are freed meanwhile, and more fits
    ceiling = mx.get_active_memory() + (60 << 20)
    gradients = gradients_of(tree, 4096, ceiling, report=told.append)
    limit = gradients.of_step(step, KEEP, {}).row_limit
    assert limit is not None
    with monkeypatch.context() as patch:
        patch.setattr(mx, "get_peak_memory", lambda: 2 * ceiling)
        for _ in range(3):
            assert gradients.of_step(step, KEEP, {}).row_limit == limit
    for _ in range(7):
        assert gradients.of_step(step, KEEP, {}).row_limit == limit
    tokens = [int(re.findall(r"(\d+) of \d+ tokens at once", text)[0]) for text in told]
    assert tokens[-1] == tokens[0] > min(tokens)


def test_memory_is_measured_between_two_steps_of_the_engine(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = load_model(tiny_models["llama"])
    engine: Any = model.make_engine()
    apply_lora(model, rank=2)
    told: list[str] = []
    began, end = Event(), Event()  # a step ends when it is waited for, or was not waited for

    def report(line: str) -> None:
        told.append(line)
        end.set()

    def prefill(_: Any) -> None:
        large = mx.zeros((64 << 20,), mx.uint8)
        mx.eval(large)
        began.set()
        end.wait(60.0)
        del large

    def call(*given: Any) -> Any:
        waiting = call_engine(*given)
        end.set()
        return waiting

    backend = model.make_backend(BackendConfig(report=report))
    before = mx.get_active_memory()
    running = engine.run(prefill)
    assert began.wait(10.0)
    worker = model._workers["legos-engine"]
    call_engine = worker.call
    monkeypatch.setattr(worker, "call", call)
    backend.forward_backward(random_samples_of([20]), [1.0], KEEP).result()
    running.result()
    held = float(re.findall(r"memory: (\d+) MiB held", told[0])[0]) * MIB
    assert held < before + (32 << 20)
    engine.close()
    model.close()


def trainer(folder: Path, **options: Any) -> Trainer:
    config = TrainingConfig(learning_rate=1e-3, **options)
    return Trainer(model=load_model(folder, inline=True), config=config)


def batch_of(samples: Sequence[Sample]) -> Group:
    tokens = sum(len(sample.positions) for sample in samples)
    return Group(samples=tuple(samples), episodes=(), tokens_generated=tokens)


def test_a_trainer_books_what_did_not_fit(tiny_models: Mapping[str, Path]) -> None:
    samples = random_samples_of([60, 3000, 80])
    held = mx.get_active_memory()
    made = trainer(tiny_models["llama"], memory_limit_gib=(held + (64 << 20)) / 2**30)
    try:
        metrics = made.train_step(batch_of(samples))
        assert (metrics["applied"], metrics["tokens_trained"]) == (1, 2)
        assert metrics["filtered/too_long_tokens"] == 1
        assert 0 < (metrics["memory/peak_gib"] or 0) * 2**30 < held + (64 << 20)
        with pytest.raises(TrainerError, match="no sample of this step fits into memory"):
            made.train_step(batch_of(samples[1:2]))
    finally:
        made.close()


def test_the_engine_of_a_trainer_shares_its_memory_limit(tiny_models: Mapping[str, Path]) -> None:
    made = trainer(tiny_models["llama"], memory_limit_gib=2.0)
    try:
        engine: Any = made.engine
        weights = num_bytes(engine._model.parameters())
        assert engine._scheduler.budget.limit == ((2 << 30) - weights) // 4
    finally:
        made.close()


def test_a_sample_longer_than_a_micro_batch_is_trained_on(
    tiny_models: Mapping[str, Path],
) -> None:
    made = trainer(tiny_models["llama"], micro_batch_tokens=64)
    try:
        metrics = made.train_step(batch_of(random_samples_of([60, 300])))
    finally:
        made.close()
    assert (metrics["tokens_trained"], metrics["tokens_filtered"]) == (2, 0)
