"""A loss of groups is a function and a line: its gradient, in any split, and what it teaches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_steps import Arrays, compute, logprobs_of, saved
from msgspec.structs import replace
from numpy.typing import NDArray
from random_samples import float64, random_samples
from tiny_models import write_any_model

from legos.fakes import make_sample
from legos.losses.metrics import SUMS
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES, ChosenTokens, LossSpec
from legos.losses.total import BatchArrays, policy_loss
from legos.records.batch import make_batch
from legos.records.sample import Sample
from legos.records.step import BackendConfig, Update
from legos.wiring.model import apply_lora, load_model

Floats = NDArray[np.float64]
VOCAB = 40
STEP = 1e-6
KEEP = Update(learning_rate=1e-9, max_grad_norm=1e9)


def pairwise(t: ChosenTokens) -> tuple[Any, Any]:
    """-log sigmoid(2 (s_w - s_l)) over all pairs of a group; clipped where a token did not win."""
    xp = t.xp
    s, reward = xp.sum(t.log_x * t.mask, axis=1), xp.sum(t.advantage * t.mask, axis=1)
    wins = xp.where(reward[:, None] > reward, 1.0, 0.0)
    margin = 2.0 * (s[:, None] - s)
    pairs = wins * xp.log(1.0 + xp.exp(-margin))
    return xp.sum(pairs, axis=1, keepdims=True) + 0.0 * t.mask, reward[:, None] < 0.0 * t.mask


@pytest.fixture(autouse=True)
def a_pairwise_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "pairwise", LossSpec(pairwise, "group"))  # pyrefly: ignore[bad-argument-type]


def objective_of(loss: Any, **options: Any) -> Objective:
    return Objective(loss=loss, **options)


def group_of(samples: list[Sample], weights: list[float]) -> BatchArrays:
    unread = [[(0, 0)] * len(sample.positions) for sample in samples]
    batch = make_batch(np.zeros((1, 1), np.int32), samples, weights, unread)
    return BatchArrays(np, float64(batch))


def some_samples(seed: int = 3, num_samples: int = 14) -> list[Sample]:
    """Samples of four groups of unequal sizes, in any order; prompts are shared between groups."""
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, num_samples=num_samples, vocab=VOCAB, max_length=9)
    groups, roles = rng.integers(2, size=num_samples), rng.integers(2, size=num_samples)
    return [
        replace(sample, group=f"task {group}", role=f"role {role}")
        for sample, group, role in zip(samples, groups, roles, strict=True)
    ]


def by_hand(
    samples: list[Sample], logprobs: Any, objective: Objective
) -> tuple[float, float, list[Floats]]:
    """Loss, clipped tokens and [S][A] slopes, by differences in double precision."""
    weights = normalisation_weights(samples, "sample")
    slopes = [np.zeros(len(sample.positions)) for sample in samples]
    loss = clipped = 0.0
    for key in {(sample.group, sample.role) for sample in samples}:
        members = [n for n, sample in enumerate(samples) if (sample.group, sample.role) == key]
        arrays = group_of([samples[n] for n in members], [weights[n] for n in members])
        at = np.zeros(arrays.mask.shape)
        at[arrays.mask > 0] = np.concatenate([logprobs[n] for n in members])

        def value(at: Floats, arrays: BatchArrays = arrays) -> tuple[float, float]:
            per_token, cut = policy_loss(np, at, objective, arrays, of_group=True)
            return (per_token * arrays.weight).sum(), cut.sum()

        own, cut = value(at)
        loss, clipped = loss + own, clipped + cut
        for row, column in zip(*np.nonzero(arrays.mask), strict=True):
            step = np.zeros_like(at)
            step[row, column] = STEP
            change = value(at + step)[0] - value(at - step)[0]
            slopes[members[row]][column] = change / (2 * STEP)
    return loss, clipped, slopes


def backend_of(folder: Path, device: str, **options: Any) -> Any:
    model = load_model(folder, inline=True, device=device)
    apply_lora(model, rank=4, layers=8, alpha=8.0, head=True)
    return model.make_backend(BackendConfig(betas=(0.0, 0.95), **options))


def gradient(backend: Any, samples: list[Sample], objective: Objective, folder: Path) -> Any:
    """The result of a step and its gradient, which is the first moment of Adam."""
    found = compute(backend, samples, objective)
    backend.optim_step(KEEP).result()
    moments = saved(backend, folder)["optimiser"]
    return found, {name: array for name, array in moments.items() if name.endswith(".m")}


def distance(found: Arrays, expected: Arrays) -> float:
    flat = [
        np.concatenate([each[n].ravel() for n in sorted(expected)]) for each in (found, expected)
    ]
    return float(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1]))


DEVICES = ["mlx", pytest.param("torch", marks=pytest.mark.torch)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", ["pairwise", "online_dpo"])
def test_any_split_has_the_gradient_of_the_whole_groups(
    device: str, loss: str, tmp_path: Path
) -> None:
    samples, objective = some_samples(), objective_of(loss)
    model = write_any_model(tmp_path / "model", architecture="llama")
    whole = backend_of(model, device, micro_batch_tokens=4096)
    found, expected = gradient(whole, samples, objective, tmp_path / "whole")
    value, clipped, slopes = by_hand(samples, found.logprobs, objective)
    assert found.loss == pytest.approx(value, rel=1e-5)
    assert found.sums[SUMS.index("clipped")] == clipped
    weights = normalisation_weights(samples, "sample")
    credited = [
        replace(sample, advantages=tuple((-slope / weight).tolist()))
        for sample, slope, weight in zip(samples, slopes, weights, strict=True)
    ]
    reinforced = backend_of(model, device, micro_batch_tokens=4096)
    plain = Objective(loss="reinforce")
    assert distance(gradient(reinforced, credited, plain, tmp_path / "plain")[1], expected) < 1e-5
    for tokens in (9, 20):
        split = backend_of(model, device, micro_batch_tokens=tokens)
        other, gradients = gradient(split, samples, objective, tmp_path / f"{tokens}")
        assert distance(gradients, expected) < 1e-5
        assert other.loss == pytest.approx(found.loss, rel=1e-5)
        assert other.sums == pytest.approx(found.sums, rel=1e-4, abs=1e-4)
    order = np.random.default_rng(0).permutation(len(samples))
    mixed = backend_of(model, device, micro_batch_tokens=20)
    shuffled = [samples[n] for n in order]
    assert distance(gradient(mixed, shuffled, objective, tmp_path / "mixed")[1], expected) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_divergences_and_corrections_stay_those_of_each_token(device: str, tmp_path: Path) -> None:
    samples = some_samples()
    options: Mapping[str, Any] = {"kl_coef": 0.3, "entropy_coef": 0.1, "icepop": 5.0}
    model = write_any_model(tmp_path / "model", architecture="llama")
    found = [
        gradient(backend_of(model, device, micro_batch_tokens=n), samples, each, tmp_path / f"{i}")
        for i, (n, each) in enumerate(
            [
                (4096, objective_of("pairwise", **options)),
                (20, objective_of("pairwise", **options)),
            ]
        )
    ]
    assert distance(found[1][1], found[0][1]) < 1e-5
    assert found[0][0].sums[SUMS.index("masked")] > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", ["pairwise", "online_dpo"])
def test_it_learns_which_answer_is_preferred(device: str, loss: str, tmp_path: Path) -> None:
    model = write_any_model(tmp_path / "model", architecture="llama")
    backend = backend_of(model, device, micro_batch_tokens=8)
    answers = {(5, 6): 0.5, (7, 8): -0.5}

    def likelihoods() -> list[float]:
        return [float(found.sum()) for found in logprobs_of(backend, batch())]

    def batch() -> list[Sample]:
        rows = [
            make_sample((1, 2, 3, *answer), positions=(3, 4), advantages=a, group="task")
            for answer, a in answers.items()
        ]
        found = logprobs_of(backend, rows)
        return [
            replace(row, logprobs=tuple(np.minimum(own, 0.0).tolist()))
            for row, own in zip(rows, found, strict=True)
        ]

    before = likelihoods()
    losses: list[float] = []
    sampled = batch()
    for _ in range(12):
        losses.append(compute(backend, sampled, objective_of(loss)).loss)
        backend.optim_step(Update(learning_rate=1e-2)).result()
    better, worse = (after - old for after, old in zip(likelihoods(), before, strict=True))
    assert better > worse + 1.0
    assert losses[-1] < losses[0]


def test_a_loss_that_is_not_finite_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = LossSpec(lambda t: (t.logprob / (0.0 * t.mask), t.mask < 0), "group")
    monkeypatch.setitem(LOSSES, "pairwise", spec)  # pyrefly: ignore[bad-argument-type]
    backend = backend_of(write_any_model(tmp_path / "model", architecture="llama"), "mlx")
    found = compute(backend, some_samples(), objective_of("pairwise"))
    assert not np.isfinite(found.loss)
