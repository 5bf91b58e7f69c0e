"""The reference of the divergences: another adapter, refreshed, kept, refused where it must be."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from backend_steps import Stepped, optimiser_step
from graphs import operations
from mlx.utils import tree_flatten
from mlx_backends import tree_backend
from packed import pack
from tiny_models import write_any_model
from total_loss import total_loss

from legos.device.backend import LoraBackend
from legos.errors import AdapterError, CheckpointError
from legos.fakes import make_sample
from legos.losses.metrics import SUMS
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.losses.total import BatchArrays
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, other_lora, set_lora_arrays
from legos.mlx.train import step_gradients
from legos.mlx.train.rematerialisation import rematerialise_layers
from legos.mlx.train.step_gradients import StepGradients
from legos.records.batch import Batch
from legos.records.packing import StepSamples
from legos.records.sample import Sample
from legos.records.step import BackendConfig, Update
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.folder import write_adapter
from legos.weights.reference import Lora, fitted

VOCAB = 40
RANK, OTHER_RANK = 4, 6
Change = Callable[[dict[str, Any]], dict[str, Any]]


def trained_tree(folder: Path, *, rank: int, alpha: float, seed: int) -> tuple[Any, LoraShape]:
    """A tree whose LoRA pairs are random, none of them zero."""
    tree: Any = load_tree(folder)
    shape = lora_shape(tree, rank=rank, alpha=alpha, num_layers=8, head=True)
    add_lora(tree, shape, seed=0)
    rng = np.random.default_rng(seed)
    arrays = {
        name: mx.array((0.05 * rng.standard_normal(array.shape)).astype(np.float32))
        for name, array in lora_arrays(tree).items()
    }
    set_lora_arrays(tree, arrays)
    return tree, shape


def both(folder: Path) -> tuple[Any, Any, Adapter]:
    """The policy's tree, a tree of its own for the reference, and the latter's adapter."""
    policy, _ = trained_tree(folder, rank=RANK, alpha=8.0, seed=1)
    other, shape = trained_tree(folder, rank=OTHER_RANK, alpha=30.0, seed=2)
    return policy, other, Adapter(name="other", version=3, shape=shape, arrays=lora_arrays(other))


def some_samples(rng: np.random.Generator, *, legal: bool) -> list[Sample]:
    """Completions of two prompts, long enough for the prompts to be shared.

    With ``legal``, every other position is drawn from some of the vocabulary.
    """
    samples: list[Sample] = []
    for group in range(2):
        prompt = rng.integers(1, VOCAB, 140).tolist()
        for _ in range(3):
            tokens = [*prompt, *rng.integers(1, VOCAB, rng.integers(4, 12)).tolist()]
            positions = range(len(prompt), len(tokens))
            allowed = [tuple({tokens[p], 3, 4}) if legal and p % 2 else () for p in positions]
            samples.append(
                make_sample(
                    tokens,
                    positions=positions,
                    logprobs=(-4 * rng.random(len(positions))).tolist(),
                    advantages=rng.standard_normal(len(positions)).tolist(),
                    legal=allowed,
                    group=f"task {group}",
                )
            )
    return samples


def whole(samples: Sequence[Sample]) -> StepSamples:
    return StepSamples(samples=samples, weights=normalisation_weights(samples, "token"))


def by_hand(
    policy: Any, other: Any, samples: Sequence[Sample], objective: Objective
) -> tuple[np.ndarray, dict[str, mx.array]]:
    """Metric sums and gradients of samples one by one, the reference from a tree of its own."""
    sums, gradients = np.zeros(len(SUMS)), list[dict[str, mx.array]]()
    weights = normalisation_weights(samples, "token")
    for sample, weight in zip(samples, weights, strict=True):
        (batch,) = pack([sample], [weight], max_tokens=1000)
        at = mx.array(batch.logit_row), mx.array(batch.logit_column)
        reference = other(mx.array(batch.input_ids))[at].astype(mx.float32)
        mx.eval(reference)

        def loss(batch: Batch = batch, at: Any = at, reference: Any = reference) -> Any:
            logits = policy(mx.array(batch.input_ids))[at].astype(mx.float32)
            return total_loss(mx, logits, BatchArrays(mx, batch), objective, reference=reference)

        (_, counted), found = nn.value_and_grad(policy, loss)()
        gradients.append(dict(tree_flatten(found)))
        mx.eval(gradients)
        sums += np.array(counted, np.float64)
    return sums, {n: sum((g[n] for g in gradients), mx.array(0.0)) for n in gradients[0]}


def gap(found: Mapping[str, mx.array], expected: Mapping[str, mx.array]) -> float:
    """Norm of the difference of all gradients over their norm."""
    assert found.keys() == expected.keys()
    left = np.concatenate([np.array(found[n], np.float64).ravel() for n in sorted(expected)])
    right = np.concatenate([np.array(expected[n], np.float64).ravel() for n in sorted(expected)])
    assert np.linalg.norm(right) > 1e-3
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def fitted_here(adapter: Adapter, policy: Any) -> Lora:
    """The adapter as a reference of the policy, on the device."""
    lora = fitted(adapter, lora_arrays(policy), name="other")
    return lora.converted(lambda arrays: {key: mx.array(each) for key, each in arrays.items()})


OBJECTIVES: Mapping[str, Objective] = {
    "k2": Objective(kl_coef=0.7),
    "k3": Objective(kl_coef=0.7, kl_estimator="k3"),
    "exact": Objective(kl_coef=0.7, kl_estimator="exact"),
    "gspo": Objective(kl_coef=0.7, loss="gspo", clip_low=0.5, clip_high=0.5),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_another_adapter_is_the_reference_on_every_path(
    tiny_models: Mapping[str, Path], objective: str
) -> None:
    policy, other, adapter = both(tiny_models["llama"])
    reference = fitted_here(adapter, policy)
    samples = some_samples(np.random.default_rng(0), legal=True)
    chosen = OBJECTIVES[objective]
    sums, expected = by_hand(policy, other, samples, chosen)
    # 60: the prompts are carried to several passes. 5: the head runs in chunks.
    for max_tokens, max_places in ((60, 5), (10_000, None)):
        step = StepGradients(
            policy, BackendConfig(micro_batch_tokens=max_tokens), max_places=max_places
        )
        assert step.shares
        found = step.of_step(whole(samples), chosen, {"reference": reference})
        assert found.sums == pytest.approx(sums, rel=1e-4, abs=1e-4)
        assert gap(dict(tree_flatten(found.gradients)), expected) < 5e-6
    base = step.of_step(whole(samples), chosen, {"reference": None})
    assert abs(base.sums - sums)[SUMS.index("kl")] > 0.1  # it is not that of the model without LoRA


def test_passes_that_only_score_compute_no_reference(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a loss of groups, whose slopes need the policy's log-probabilities alone."""
    policy, _, adapter = both(tiny_models["llama"])
    others = {"reference": fitted_here(adapter, policy)}
    computed: list[Lora | None] = []

    def counted(model: Any, lora: Lora | None) -> Any:
        computed.append(lora)
        return other_lora(model, lora)

    monkeypatch.setattr(step_gradients, "other_lora", counted)
    gradients = StepGradients(policy, BackendConfig(micro_batch_tokens=10_000))
    step = whole(some_samples(np.random.default_rng(0), legal=False))
    objective = Objective(loss="online_dpo", kl_coef=0.7)
    scored = gradients.of_step(replace(step, backward=False), objective, others)
    assert not computed
    trained = gradients.of_step(step, objective, others)
    assert computed
    assert scored.logprobs == pytest.approx(trained.logprobs, abs=1e-6)


@pytest.mark.parametrize("architecture", ["qwen3_moe", "lfm2", "llama"])
def test_experts_states_and_layers_computed_again(tmp_path: Path, architecture: Any) -> None:
    folder = write_any_model(tmp_path / "model", architecture=architecture)
    policy, other, adapter = both(folder)
    reference = fitted_here(adapter, policy)
    samples = some_samples(np.random.default_rng(0), legal=False)
    sums, expected = by_hand(policy, other, samples, OBJECTIVES["k2"])
    rematerialise_layers(policy)
    step = StepGradients(policy, BackendConfig(micro_batch_tokens=1000), max_places=5)
    found = step.of_step(whole(samples), OBJECTIVES["k2"], {"reference": reference})
    assert found.sums == pytest.approx(sums, rel=1e-4, abs=1e-4)
    assert gap(dict(tree_flatten(found.gradients)), expected) < 5e-6


def test_the_tree_is_as_it_was_after_the_block(tiny_models: Mapping[str, Path]) -> None:
    policy, other, adapter = both(tiny_models["llama"])
    ids = mx.array([[5, 6, 7]])
    before = np.array(policy(ids))
    with other_lora(policy, fitted_here(adapter, policy)):
        np.testing.assert_allclose(np.array(policy(ids)), np.array(other(ids)), atol=1e-6)
    same = Lora(arrays=adapter.arrays, scale=2.0)
    with pytest.raises(ZeroDivisionError), other_lora(policy, same):
        raise ZeroDivisionError
    np.testing.assert_array_equal(np.array(policy(ids)), before)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_the_model_without_lora_starts_no_kernel_of_lora(tmp_path: Path, architecture: Any) -> None:
    """Nor does it multiply LoRA by 0."""
    folder = write_any_model(tmp_path / "model", architecture=architecture)
    policy, _ = trained_tree(folder, rank=RANK, alpha=8.0, seed=1)
    plain: Any = load_tree(folder)
    ids = mx.array([[5, 6, 7]])
    with other_lora(policy, None):
        found = policy(ids)
    assert operations(found) == operations(plain(ids))
    np.testing.assert_array_equal(np.array(found), np.array(plain(ids)))


def make_backend(
    folder: Path, reference: Path | None = None, *, restored: bool = False
) -> LoraBackend:
    tree: Any = load_tree(folder)
    shape = lora_shape(tree, rank=RANK, alpha=8.0, num_layers=8, head=False)
    add_lora(tree, shape, seed=0)
    config = BackendConfig(reference=reference, restored=restored)
    return tree_backend(tree, shape, config)


def written(folder: Path, model: Path, *, seed: int = 2, change: Change = dict) -> Path:
    """The folder of an adapter that fits the backends of these tests but for its rank."""
    tree: Any = load_tree(model)
    shape = lora_shape(tree, rank=OTHER_RANK, alpha=8.0, num_layers=8, head=False)
    add_lora(tree, shape, seed=seed)
    rng = np.random.default_rng(seed)
    arrays = {
        name: (0.05 * rng.standard_normal(array.shape)).astype(np.float32)
        for name, array in lora_arrays(tree).items()
    }
    folder.mkdir()
    write_adapter(Adapter(name="other", version=7, shape=shape, arrays=change(arrays)), folder)
    return folder


def step(
    backend: LoraBackend,
    *,
    logprobs: float = -3.0,
    kl_refresh_steps: int | None = None,
    threshold: float = 1.0,
    **objective: Any,
) -> Stepped:
    tokens = (5, 6, 7, 8, 9, 10, 11)
    sample = make_sample(tokens, positions=range(3, 7), logprobs=logprobs, advantages=1.0)
    settings: dict[str, Any] = {"kl_coef": 0.1, "loss": "reinforce", **objective}
    return optimiser_step(
        backend,
        [sample],
        Objective(**settings),
        update=Update(learning_rate=1e-2, kl_refresh_steps=kl_refresh_steps),
        clip_skip_threshold=threshold,
    )


def divergence(backend: LoraBackend, **objective: Any) -> float:
    return step(backend, **objective).metrics["kl_divergence"]


def test_every_n_applied_steps_the_reference_is_the_policy(
    tiny_models: Mapping[str, Path],
) -> None:
    backend = make_backend(tiny_models["llama"])
    found = [divergence(backend, kl_refresh_steps=2) for _ in range(4)]
    assert found[0] == found[2] == 0.0  # at version 0 LoRA adds nothing; version 2 is the new one
    assert min(found[1], found[3]) > 1e-3


def test_a_step_that_is_left_out_refreshes_nothing(tiny_models: Mapping[str, Path]) -> None:
    backend = make_backend(tiny_models["llama"])
    before = [divergence(backend) for _ in range(2)]
    rare: Mapping[str, Any] = {"logprobs": -20.0, "loss": "ppo", "threshold": 0.5}
    assert step(backend, kl_refresh_steps=2, **rare).reason == "clip_skip"
    assert backend.adapter().version == 2
    assert divergence(backend) > before[1] > before[0] == 0.0


def test_the_reference_begins_as_the_adapter_of_a_folder(
    tiny_models: Mapping[str, Path], tmp_path: Path
) -> None:
    given = written(tmp_path / "other", tiny_models["llama"])
    other, plain = make_backend(tiny_models["llama"], given), make_backend(tiny_models["llama"])
    assert abs(divergence(other, kl_refresh_steps=2)) > 1e-3
    assert divergence(plain) == 0.0
    step(other, kl_refresh_steps=2)
    assert divergence(other) == 0.0


@pytest.mark.parametrize("missing", ["q_proj", "layers.1"])
def test_a_reference_adds_nothing_where_it_has_no_pair(
    tiny_models: Mapping[str, Path], tmp_path: Path, missing: str
) -> None:
    def emptied(arrays: dict[str, Any]) -> dict[str, Any]:
        return {n: 0 * a if missing in n and "lora_b" in n else a for n, a in arrays.items()}

    model = tiny_models["llama"]
    changes = {"part": without(missing), "zero": emptied, "whole": dict}
    given = {name: written(tmp_path / name, model, change=c) for name, c in changes.items()}
    found = {name: divergence(make_backend(model, place)) for name, place in given.items()}
    assert found["part"] == found["zero"] != found["whole"]


@pytest.mark.parametrize("refresh", [None, 2, 3])
@pytest.mark.parametrize("from_folder", [False, True])
def test_a_restored_backend_goes_on_to_the_bit(
    tiny_models: Mapping[str, Path], tmp_path: Path, refresh: int | None, from_folder: bool
) -> None:
    model = tiny_models["llama"]
    given = written(tmp_path / "other", model) if from_folder else None
    whole, first = make_backend(model, given), make_backend(model, given)
    expected = [step(whole, kl_refresh_steps=refresh).metrics for _ in range(6)]
    for _ in range(3):
        step(first, kl_refresh_steps=refresh)
    kept = tmp_path / "kept"
    kept.mkdir()
    first.snapshot().result()(kept)
    if given is not None:
        shutil.rmtree(given)  # the checkpoint needs it no more
    second = make_backend(model, given, restored=True)
    second.restore(kept)
    assert [step(second, kl_refresh_steps=refresh).metrics for _ in range(3)] == expected[3:]
    assert second.adapter().digest == whole.adapter().digest


def test_another_reference_than_the_checkpoint_began_with_holds(
    tiny_models: Mapping[str, Path], tmp_path: Path
) -> None:
    model = tiny_models["llama"]
    one, two = (written(tmp_path / name, model, seed=s) for s, name in enumerate(("one", "two")))
    backend = make_backend(model, one)
    backend.snapshot().result()(tmp_path)
    expected = [divergence(make_backend(model, source)) for source in (one, two, None)]
    assert len(set(expected)) == 3
    found: list[float] = []
    for source in (one, two, None):
        restored = make_backend(model, source, restored=True)
        restored.restore(tmp_path)
        found.append(divergence(restored))
    assert found == expected
    with pytest.raises(CheckpointError, match="nowhere is no adapter folder"):
        make_backend(model, tmp_path / "nowhere", restored=True).restore(tmp_path)


def without(name: str) -> Change:
    return lambda arrays: {key: array for key, array in arrays.items() if name not in key}


def changed(letter: str, build: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        first = next(key for key in sorted(arrays) if key.endswith(letter))
        return {**arrays, first: build(arrays[first])}

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without("q_proj.lora_a"), r"lacks model\.layers\.\d\.self_attn\.q_proj\.lora_a"),
        (lambda a: {**a, "more.lora_a": a[min(a)]}, r"holds more\.lora_a"),
        (changed("lora_a", lambda a: a[:-1]), r"lora_a has shape \(\d+, 6\), expected \(\d+, 6\)"),
        (changed("lora_b", lambda b: b * np.nan), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tiny_models: Mapping[str, Path], tmp_path: Path, change: Change, told: str
) -> None:
    given = written(tmp_path / "other", tiny_models["llama"], change=change)
    with pytest.raises(AdapterError, match=rf"(?s)does not fit the policy.*{told}.*lora_layers"):
        make_backend(tiny_models["llama"], given)


def test_an_adapter_that_contradicts_itself_is_not_read(
    tiny_models: Mapping[str, Path], tmp_path: Path
) -> None:
    change = changed("lora_b", lambda b: b[:-1])
    given = written(tmp_path / "other", tiny_models["llama"], change=change)
    with pytest.raises(AdapterError, match=r"cannot be read .* several ranks: 6 .*5"):
        make_backend(tiny_models["llama"], given)
