"""Log-probabilities that a backend tells, references from elsewhere, policies over one base."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from backend_steps import logprobs_of, optimiser_step
from mlx_backends import tree_backend
from msgspec.structs import replace as changed
from random_samples import random_samples
from tiny_models import write_any_model

from legos.device.backend import LoraBackend
from legos.errors import AdapterError, CheckpointError, RecordError, TrainerError
from legos.fakes import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.device import MlxDevice
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape, other_lora
from legos.records.sample import Sample
from legos.records.step import BackendConfig, PassResult, Update

VOCAB = 40


def made(folder: Path, *, alpha: float = 8.0, **settings: Any) -> tuple[Any, LoraBackend]:
    """A backend whose policies have taken one step away from the base."""
    tree: Any = load_tree(folder)
    shape = lora_shape(tree, rank=4, alpha=alpha, num_layers=2, head=True)
    add_lora(tree, shape, seed=0)
    return tree, tree_backend(tree, shape, BackendConfig(**settings))


def moved(folder: Path, **settings: Any) -> tuple[Any, LoraBackend]:
    tree, backend = made(folder, **settings)
    for seed in range(3):
        optimiser_step(backend, some(seed), update=Update(learning_rate=2e-2))
    return tree, backend


def some(seed: int) -> list[Sample]:
    """Samples of open, legal and restricted tokens at several temperatures."""
    return random_samples(np.random.default_rng(seed), num_samples=9, vocab=VOCAB, max_length=12)


def group(seed: int) -> list[Sample]:
    """Completions of one prompt, which is long enough to be shared and to be carried."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, VOCAB, 150).tolist()
    return [
        make_sample(
            [*prompt, *rng.integers(1, VOCAB, count).tolist()],
            positions=range(150, 150 + count),
        )
        for count in (3, 7, 12, 5)
    ]


def by_hand(tree: Any, sample: Sample) -> np.ndarray:
    """Log-probabilities of an open sample at its temperature, from one plain forward pass."""
    logits = np.array(tree(mx.array([sample.token_ids]))[0].astype(mx.float32), np.float64)
    logits = logits[[p - 1 for p in sample.positions]] / sample.temperature
    chosen = [sample.token_ids[p] for p in sample.positions]
    top = logits.max(axis=1)
    normaliser = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return logits[np.arange(len(chosen)), chosen] - normaliser


@pytest.mark.parametrize("micro_batch_tokens", [60, 4096])  # 60: the prompt is carried
@pytest.mark.parametrize("max_places", [3, None])  # 3: the head runs in chunks
def test_they_are_those_of_a_plain_forward_pass(
    tiny_models: Mapping[str, Path], micro_batch_tokens: int, max_places: int | None
) -> None:
    tree, backend = moved(tiny_models["llama"], micro_batch_tokens=micro_batch_tokens)
    if max_places is not None:
        steps: Any = backend._device
        runner = steps._runner
        steps._runner = replace(runner, max_places=max_places)
    samples = [changed(sample, temperature=0.7) for sample in group(0)]
    own = logprobs_of(backend, samples)
    base = logprobs_of(backend, samples, reference=True)
    assert [row.dtype for row in own] == [np.float32] * 4
    for sample, of_policy, of_base in zip(samples, own, base, strict=True):
        np.testing.assert_allclose(of_policy, by_hand(tree, sample), atol=1e-5)
        with other_lora(tree, None):
            np.testing.assert_allclose(of_base, by_hand(tree, sample), atol=1e-5)
    assert np.abs(own[0] - base[0]).max() > 1e-2


def step(backend: LoraBackend, samples: list[Sample], objective: Objective) -> PassResult:
    weights = normalisation_weights(samples, "token")
    return backend.forward_backward(samples, weights, objective).result()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_reference_from_elsewhere_gives_the_same_step(
    tiny_models: Mapping[str, Path], share: float
) -> None:
    objective = Objective(kl_coef=0.5, kl_estimator="k3")
    _, backend = moved(tiny_models["llama"])
    samples = some(7)
    given = logprobs_of(backend, samples, reference=True)
    told = [
        changed(sample, reference_logprobs=tuple(np.minimum(row, 0.0).tolist()))
        if number < share * len(samples)
        else sample
        for number, (sample, row) in enumerate(zip(samples, given, strict=True))
    ]
    expected, found = step(backend, samples, objective), step(backend, told, objective)
    assert expected.sums[2] > 1e-3  # the divergence
    assert found.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-6)
    assert found.sums == pytest.approx(expected.sums, rel=1e-4, abs=1e-5)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    other = [changed(sample, reference_logprobs=(-5.0,) * len(sample.positions)) for sample in told]
    assert step(backend, other, objective).sums[2] != pytest.approx(expected.sums[2], rel=1e-2)


def test_where_all_samples_bring_one_no_reference_is_computed(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, backend = made(tiny_models["llama"])

    def never(*_: Any) -> Any:
        raise AssertionError("the reference was computed")

    monkeypatch.setattr("legos.mlx.train.step_gradients.other_lora", never)
    told = [changed(s, reference_logprobs=(-1.0,) * len(s.positions)) for s in group(1)]
    step(backend, told, Objective(kl_coef=0.1))
    with pytest.raises(AssertionError, match="was computed"):
        step(backend, group(1), Objective(kl_coef=0.1))


def test_what_cannot_be_a_reference_is_refused(tiny_models: Mapping[str, Path]) -> None:
    _, backend = made(tiny_models["llama"])
    told = [changed(s, reference_logprobs=(-1.0,) * len(s.positions)) for s in group(1)]
    with pytest.raises(TrainerError, match="'exact' compares whole distributions"):
        step(backend, told, Objective(kl_coef=0.1, kl_estimator="exact"))
    for given in ((-1.0,), (-1.0, 0.5, -1.0), (-1.0, float("nan"), -1.0)):
        with pytest.raises(RecordError, match="numbers for 3 chosen tokens; expected one finite"):
            changed(group(1)[0], reference_logprobs=given)


def test_each_policy_is_trained_as_if_it_were_alone(tiny_models: Mapping[str, Path]) -> None:
    objective = Objective(kl_coef=0.2, ema_kl_coef=0.2)
    updates = {
        "policy": Update(learning_rate=1e-2, ema_decay=0.5),
        "rival": Update(learning_rate=2e-2, ema_decay=0.9, kl_refresh_steps=2),
    }
    _, both = made(tiny_models["llama"], policies=("policy", "rival"))
    alone = {name: made(tiny_models["llama"])[1] for name in updates}
    for seed in range(3):
        for number, (name, update) in enumerate(updates.items()):
            samples = some(10 * seed + number)
            weights = normalisation_weights(samples, "token")
            expected = step(alone[name], samples, objective)
            alone[name].optim_step(update).result()
            found = both.forward_backward(samples, weights, objective, policy=name).result()
            assert found.sums == expected.sums
            both.optim_step(update, policies=[name]).result()
            assert both.adapter(name).version == seed + 1
    for name, backend in alone.items():
        mine, own = both.adapter(name), backend.adapter()
        assert (mine.name, mine.version) == (name, 3)
        for key, array in own.arrays.items():
            np.testing.assert_array_equal(np.asarray(mine.arrays[key]), np.asarray(array))
    for name in alone:
        told = logprobs_of(both, some(99), policy=name, reference=True)
        expected = logprobs_of(alone[name], some(99), reference=True)
        np.testing.assert_array_equal(np.concatenate(told), np.concatenate(expected))
    assert both.adapter().version == 3


def test_policies_are_saved_by_name_and_go_on_to_the_bit(
    tiny_models: Mapping[str, Path], tmp_path: Path
) -> None:
    names, update = ("policy", "rival"), Update(learning_rate=1e-2, ema_decay=0.5)
    _, whole = made(tiny_models["llama"], policies=names)

    def train(backend: LoraBackend, seed: int) -> None:
        for number, name in enumerate(names):
            samples = some(10 * seed + number)
            weights = normalisation_weights(samples, "token")
            pull = Objective(ema_kl_coef=0.2)
            backend.forward_backward(samples, weights, pull, policy=name).result()
            backend.optim_step(update, policies=[name]).result()

    train(whole, 0)
    whole.snapshot().result()(tmp_path)
    _, again = made(tiny_models["llama"], policies=names)
    again.restore(tmp_path)
    for backend in (whole, again):
        train(backend, 1)
    assert [again.adapter(name).info for name in names] == [
        whole.adapter(name).info for name in names
    ]
    assert len({whole.adapter(name).digest for name in names}) == 2
    (tmp_path / "other").mkdir()
    for file in (tmp_path / "rival").iterdir():
        file.rename(tmp_path / "other" / file.name)
    _, other = made(tiny_models["llama"], policies=("policy", "other"))
    with pytest.raises(CheckpointError, match="holds policy 'rival'; expected 'other'"):
        other.restore(tmp_path)
    with pytest.raises(CheckpointError, match="rival"):
        again.restore(tmp_path)


def test_a_policy_goes_on_from_an_adapter_of_another_scale(
    tiny_models: Mapping[str, Path],
) -> None:
    folder = tiny_models["llama"]
    theirs, ours = moved(folder, alpha=32.0)[1], made(folder)[1]
    before, expected = (logprobs_of(one, some(9)) for one in (ours, theirs))
    assert ours.take(theirs.adapter()).result() == 1
    gaps = [0.0]
    for first, right, found in zip(before, expected, logprobs_of(ours, some(9)), strict=True):
        assert found == pytest.approx(right, abs=1e-5)
        gaps.append(float(np.abs(found - np.array(first)).max(initial=0.0)))
    assert max(gaps) > 0.1


def test_an_adapter_of_other_modules_is_refused(tiny_models: Mapping[str, Path]) -> None:
    _, backend = made(tiny_models["llama"])
    adapter = backend.adapter()
    missing = max(adapter.arrays)
    fewer = {name: array for name, array in adapter.arrays.items() if name != missing}
    with pytest.raises(AdapterError, match=f"lacks {missing}"):
        backend.take(replace(adapter, arrays=fewer)).result()
    assert backend.adapter().version == 0


def test_a_checkpoint_may_follow_other_weights_at_once(tmp_path: Path) -> None:
    model = MlxDevice().load(str(write_any_model(tmp_path / "model")))
    with closing(model):
        model.add_lora(model.lora_shape(rank=2, alpha=4.0, num_layers=1, head=False))
        backend = model.make_backend()
        assert backend.take(backend.adapter()).result() == 1
        backend.snapshot().result()(tmp_path)  # on another thread than the model's
        backend.restore(tmp_path)
        assert backend.adapter().version == 1


def test_gradients_from_before_a_restore_are_not_applied(
    tiny_models: Mapping[str, Path], tmp_path: Path
) -> None:
    _, backend = moved(tiny_models["llama"])
    backend.snapshot().result()(tmp_path)
    backend.forward_backward([make_sample()], [1.0], Objective()).result()
    backend.restore(tmp_path)
    with pytest.raises(TrainerError, match="there are no gradients to apply"):
        backend.optim_step(Update(learning_rate=0.1)).result()
    assert backend.adapter().version == 3


def test_an_update_that_fails_for_one_policy_changes_none(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, rate = ("policy", "rival"), Update(learning_rate=1e-2)
    _, backend = made(tiny_models["llama"], policies=names)

    def compute() -> None:
        for name in names:
            backend.forward_backward(some(1), [1.0] * len(some(1)), Objective(), policy=name)

    compute()
    updated = LoraBackend._updated

    def failing(self: LoraBackend, policy: Any, update: Update) -> Any:
        if policy is self._find("rival"):
            raise TrainerError("the memory is full")
        return updated(self, policy, update)

    with monkeypatch.context() as patched:
        patched.setattr(LoraBackend, "_updated", failing)
        with pytest.raises(TrainerError, match="the memory is full"):
            backend.optim_step(rate, policies=names).result()
    assert [backend.adapter(name).version for name in names] == [0, 0]
    compute()
    backend.optim_step(rate, policies=names).result()
    assert [backend.adapter(name).version for name in names] == [1, 1]


def test_an_unknown_policy_is_named(tiny_models: Mapping[str, Path]) -> None:
    _, backend = made(tiny_models["llama"])
    for call in (
        lambda: backend.optim_step(Update(learning_rate=0.1), policies=["rival"]).result(),
        lambda: logprobs_of(backend, some(0), policy="rival"),
        lambda: backend.adapter("rival"),
    ):
        with pytest.raises(TrainerError, match=r"no policy 'rival' .* known: \['policy'\]"):
            call()
