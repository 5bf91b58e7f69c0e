"""Gradients of a whole step as the backend computes them, against one padded row per sample."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from packed import pack
from tiny_models import write_any_model
from total_loss import total_loss

from legos.fakes import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.losses.total import BatchArrays
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, other_lora, set_lora_arrays
from legos.mlx.train.prefix_sharing.plan import plan_passes
from legos.mlx.train.prefix_sharing.trie import token_trie
from legos.mlx.train.rematerialisation import rematerialise_layers
from legos.mlx.train.step_gradients import StepGradients
from legos.records.batch import Batch
from legos.records.packing import StepSamples, step_rows
from legos.records.sample import Sample
from legos.records.step import BackendConfig
from legos.weights.reference import Lora

VOCAB = 40
SCALE = 2.0
Arrays = Mapping[str, mx.array]


def trained_tree(folder: Path, *, head: bool = True) -> Any:
    """A tree whose LoRA pairs are random, none of them zero."""
    tree = load_tree(folder)
    shape = lora_shape(tree, rank=4, alpha=4 * SCALE, num_layers=8, head=head)
    add_lora(tree, shape, seed=0)
    set_lora_arrays(tree, random_arrays(tree, seed=1))
    return tree


def random_arrays(tree: Any, *, seed: int) -> dict[str, mx.array]:
    """LoRA's arrays drawn anew."""
    rng = np.random.default_rng(seed)
    return {
        name: mx.array((0.05 * rng.standard_normal(array.shape)).astype(np.float32))
        for name, array in lora_arrays(tree).items()
    }


def others(objective: Objective, average: Arrays) -> Mapping[str, Lora | None]:
    """The other policies that an objective uses; the reference is the base model."""
    found: dict[str, Lora | None] = {}
    if objective.kl_coef:
        found["reference"] = None
    if objective.ema_kl_coef:
        found["ema"] = Lora(arrays=average, scale=SCALE)
    return found


def grouped_samples(
    rng: np.random.Generator, *, groups: int = 3, size: int = 4, prompt: int = 80, longest: int = 12
) -> list[Sample]:
    """Completions of a few prompts that begin alike, half of them after one and the same turn."""
    opening = rng.integers(1, VOCAB, 72).tolist()
    samples: list[Sample] = []
    for group in range(groups):
        asked = [*opening, *rng.integers(1, VOCAB, prompt - 8 * group).tolist()]
        turn = rng.integers(1, VOCAB, 130).tolist()
        for member in range(size):
            said = rng.integers(1, VOCAB, rng.integers(1, longest)).tolist()
            if member % 2:
                said = [*turn, *said]
            samples.append(chosen_after(rng, [*asked, *said], len(asked), group))
    return samples


def chosen_after(rng: np.random.Generator, tokens: list[int], start: int, group: int) -> Sample:
    """A sample that chose everything from a position on, but for a few tokens."""
    positions = [p for p in range(start, len(tokens)) if rng.random() < 0.8] or [start]
    legal = [
        tuple(sorted({tokens[p], *rng.integers(1, VOCAB, 3).tolist()}))
        if rng.random() < 0.3
        else ()
        for p in positions
    ]
    return make_sample(
        tokens,
        positions=positions,
        logprobs=(-4 * rng.random(len(positions))).tolist(),
        advantages=rng.standard_normal(len(positions)).tolist(),
        legal=legal,
        group=f"task {group}",
    )


def plain(
    tree: Any, samples: Sequence[Sample], objective: Objective, average: Arrays
) -> tuple[float, np.ndarray, dict[str, mx.array]]:
    """Each sample as a row of its own, every logit at once, automatic gradients alone."""
    weights = normalisation_weights(samples, "token")
    loss, sums, gradients = 0.0, 0.0, None
    for sample, weight in zip(samples, weights, strict=True):
        (batch,) = pack([sample], [weight], max_tokens=10_000)
        places = mx.array(batch.logit_row), mx.array(batch.logit_column)
        arrays = BatchArrays(mx, batch)

        def logits(batch: Batch = batch, places: Any = places) -> mx.array:
            return tree(mx.array(batch.input_ids))[places[0], places[1]].astype(mx.float32)

        others: dict[str, mx.array] = {}
        if objective.kl_coef:
            with other_lora(tree, None):
                others["reference"] = logits()
                mx.eval(others)
        if objective.ema_kl_coef:
            current = lora_arrays(tree)
            set_lora_arrays(tree, average)
            others["ema"] = logits()
            mx.eval(others)
            set_lora_arrays(tree, current)

        def run(
            logits: Callable[[], mx.array] = logits,
            arrays: BatchArrays = arrays,
            others: Mapping[str, mx.array] = others,
        ) -> Any:
            return total_loss(mx, logits(), arrays, objective, **others)

        (value, counted), found = nn.value_and_grad(tree, run)()
        gradients = found if gradients is None else tree_map(mx.add, gradients, found)
        mx.eval(gradients)
        loss += float(np.array(value))
        sums = sums + np.array(counted, np.float64)
    return loss, np.asarray(sums), dict(tree_flatten(gradients))


def chosen(tree: Any, samples: Sequence[Sample]) -> np.ndarray:
    """[N] log-probabilities of all chosen tokens, each sample as a row of its own."""
    found: list[np.ndarray] = []
    for sample in samples:
        logits = tree(mx.array([sample.token_ids[:-1]]))[0].astype(mx.float32)
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        at = np.array(sample.positions)
        found.append(logprobs[at - 1, np.array(sample.token_ids)[at]])
    return np.concatenate(found)


def whole(samples: Sequence[Sample]) -> StepSamples:
    return StepSamples(samples=samples, weights=normalisation_weights(samples, "token"))


def distance(found: Arrays, expected: Arrays) -> float:
    """Norm of the difference of all gradients over their norm."""
    assert found.keys() == expected.keys()
    gaps = [np.array(found[name], np.float64) - np.array(expected[name]) for name in expected]
    whole = np.sqrt(sum((np.array(array, np.float64) ** 2).sum() for array in expected.values()))
    assert whole > 1e-3
    return float(np.sqrt(sum((gap**2).sum() for gap in gaps)) / whole)


OBJECTIVES: Mapping[str, Objective] = {
    "ppo": Objective(),
    "regularised": Objective(kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.1),
    "exact": Objective(
        kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.1, kl_estimator="exact", loss="cispo"
    ),
    "gspo": Objective(loss="gspo", clip_low=0.5, clip_high=0.5, kl_coef=0.3),
    "gmpo": Objective(
        loss="gmpo",
        kl_coef=0.3,
        kl_estimator="exact",
        entropy_coef=0.1,
    ),
}
# Differences of nearly equal log-probabilities (k2, ratios near 1 in a mean) magnify float32's
# rounding; where the loss takes none, gradients agree as far as float32 goes.
ROUNDING = {"ppo": 1e-6, "exact": 1e-6, "regularised": 5e-6, "gspo": 5e-6, "gmpo": 5e-6}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective"),
    [
        ("qwen3", "exact"),
        ("llama", "regularised"),
        ("llama", "gspo"),
        *(pytest.param("llama", x, marks=pytest.mark.nightly) for x in ("ppo", "exact", "gmpo")),
    ],
)
def test_a_step_has_the_gradients_of_its_samples_one_by_one(
    tiny_models: Mapping[str, Path], model: str, objective: str
) -> None:
    tree = trained_tree(tiny_models[model])
    average = random_arrays(tree, seed=2)
    samples = grouped_samples(np.random.default_rng(0))
    expected_loss, expected_sums, expected = plain(tree, samples, OBJECTIVES[objective], average)
    expected_logprobs = chosen(tree, samples)
    for max_tokens, max_places in ((60, 7), (10_000, None)):
        gradients = StepGradients(
            tree, BackendConfig(micro_batch_tokens=max_tokens), max_places=max_places
        )
        assert gradients.shares
        found = gradients.of_step(
            whole(samples), OBJECTIVES[objective], others(OBJECTIVES[objective], average)
        )
        assert found.logprobs == pytest.approx(expected_logprobs, abs=2e-5)
        assert found.loss == pytest.approx(expected_loss, rel=1e-5)
        assert found.sums == pytest.approx(expected_sums, rel=1e-4, abs=1e-4)
        assert distance(found.gradients, expected) < ROUNDING[objective]


ARCHITECTURES: Mapping[str, bool] = {  # and whether prefixes can be shared
    "qwen2": True,
    "qwen3_moe": True,
    "gemma3_text": True,  # most layers see a window of 8 tokens, shorter than the prefixes
    "falcon_h1": False,
    "lfm2": False,
    "qwen3_5": False,
}


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_trained_exactly(tmp_path: Path, architecture: Any) -> None:
    tree = trained_tree(write_any_model(tmp_path / "model", architecture=architecture))
    check_exact(tree, shares=ARCHITECTURES[architecture])


@pytest.mark.slow
def test_four_bits_are_trained_exactly(tmp_path: Path) -> None:
    check_exact(trained_tree(write_any_model(tmp_path / "model", bits=4)))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_long_rows_are_trained_exactly_in_pieces(tmp_path: Path, architecture: Any) -> None:
    rng = np.random.default_rng(0)
    samples = [
        chosen_after(rng, rng.integers(1, VOCAB, length).tolist(), length - 200, 0)
        for length in (300, 640, 650)
    ]
    trie = token_trie(step_rows(samples).tokens)
    assert len(trie.segments) == 2 + 3 + 3
    tree = trained_tree(write_any_model(tmp_path / "model", architecture=architecture))
    check_exact(tree, samples=samples)


def check_exact(tree: Any, *, shares: bool = True, samples: Sequence[Sample] | None = None) -> None:
    """The gradients of a step are those of its samples one by one, also of layers run again."""
    samples = samples or grouped_samples(np.random.default_rng(0))
    average = random_arrays(tree, seed=2)
    _, _, expected = plain(tree, samples, Objective(), average)

    def check(*limits: int) -> None:
        for max_tokens in limits if shares else (1000,):
            gradients = StepGradients(
                tree, BackendConfig(micro_batch_tokens=max_tokens), max_places=13
            )
            assert gradients.shares == shares
            found = gradients.of_step(whole(samples), Objective(), {}).gradients
            assert distance(found, expected) < 2e-6

    check(60, 10_000)
    assert rematerialise_layers(tree) == rematerialise_layers(tree) == len(tree.layers)
    check(60)


def test_only_the_layers_asked_for_are_computed_again(tiny_models: Mapping[str, Path]) -> None:
    one, other = (trained_tree(tiny_models["llama"]) for _ in range(2))
    kind = type(one.layers[0])
    names = list(lora_arrays(one))
    assert rematerialise_layers(one) == 2
    assert list(lora_arrays(one)) == names
    assert type(one.layers[0]) is not kind
    assert isinstance(one.layers[0], kind)
    assert type(other.layers[0]) is kind


def test_the_samples_of_these_tests_share_prefixes_behind_prefixes() -> None:
    samples = grouped_samples(np.random.default_rng(0))
    trie = token_trie(step_rows(samples).tokens)
    assert max(len(trie.path(segment)) for segment in trie.row_segment) == 4
    carried = {number for one in plan_passes(trie, max_tokens=60) for number in one.carried}
    assert max(len(trie.path(number)) for number in carried) == 3
    assert trie.num_tokens < 0.4 * sum(len(sample.token_ids) for sample in samples)


def test_a_group_is_computed_as_one_prompt_and_its_completions() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(1, VOCAB, 100).tolist()
    samples = [
        chosen_after(rng, [*prompt, member + 1, *rng.integers(1, VOCAB, 9).tolist()], 100, 0)
        for member in range(8)
    ]
    samples = [replace_last(sample) for sample in samples]
    step = step_rows(samples)
    assert sum(map(len, step.tokens)) == 8 * 109
    assert token_trie(step.tokens).num_tokens == 100 + 8 * 9
    assert token_trie(step.tokens, share=False).num_tokens == 8 * 109


def replace_last(sample: Sample) -> Sample:
    """The same with its last token chosen, so that no token at its end is left out."""
    if sample.positions[-1] == len(sample.token_ids) - 1:
        return sample
    return make_sample(sample.token_ids)
