"""Every loss: MLX's gradient is that of finite differences, and no split of a step changes it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from objectives import EVERY_OBJECTIVE
from packed import pack
from random_samples import float64, random_samples
from total_loss import total_loss

from legos.losses.kl import loss_kl
from legos.losses.metrics import SUMS
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.losses.positions import Positions, position_logprobs
from legos.losses.total import BatchArrays
from legos.records.batch import Batch
from legos.records.sample import Sample

Floats = NDArray[np.float64]
VOCAB = 5
STEP = 1e-6


@pytest.fixture(autouse=True)
def bounds_that_few_samples_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.losses.policy.DUAL_CLIP", 1.5)
    monkeypatch.setattr("legos.losses.policy.SAPO_TAUS", (1.0, 2.0))
    monkeypatch.setattr("legos.losses.corrections.TRUNCATION_CAP", 1.2)


def rounded(array: Floats) -> Floats:
    """The same numbers for both sides: those that float32 can hold."""
    return array.astype(np.float32).astype(np.float64)


class Case:
    """A batch of five samples, and logits of the policy, the reference and the average."""

    def __init__(self, seed: int, objective: Objective) -> None:
        rng = np.random.default_rng(seed)
        samples = random_samples(rng, num_samples=5, vocab=VOCAB, max_length=4)
        (self.batch,) = pack(samples, normalisation_weights(samples, "token"), max_tokens=1000)
        shape = (3, len(self.batch.logit_row), VOCAB)
        self.logits, reference, average = rounded(rng.normal(size=shape))
        self.objective = objective
        self.others = {
            "reference": reference if objective.kl_coef else None,
            "ema": average if objective.ema_kl_coef else None,
        }
        double = float64(self.batch)
        policy, _ = position_logprobs(np, self.logits, Positions(np, double))
        self.frozen = policy[double.logit_index, double.target]

    def numpy_loss(self, logits: Floats) -> float:
        """With the policy's own log-probabilities held still where the loss detaches them."""
        arrays = BatchArrays(np, float64(self.batch))
        loss, _ = total_loss(np, logits, arrays, self.objective, frozen=self.frozen, **self.others)
        return float(loss)

    def numpy_gradient(self) -> Floats:
        """[P, V] central differences in double precision."""
        found = np.zeros_like(self.logits)
        for index in np.ndindex(*self.logits.shape):
            step = np.zeros_like(self.logits)
            step[index] = STEP
            up = self.numpy_loss(self.logits + step)
            found[index] = (up - self.numpy_loss(self.logits - step)) / (2 * STEP)
        return found

    def mlx_gradient(self) -> tuple[float, Floats]:
        arrays = BatchArrays(mx, self.batch)
        others = {
            name: None if x is None else mx.array(x.astype(np.float32))
            for name, x in self.others.items()
        }

        def loss(x: mx.array) -> mx.array:
            return total_loss(mx, x, arrays, self.objective, **others)[0]

        value, found = mx.value_and_grad(loss)(mx.array(self.logits.astype(np.float32)))
        return float(np.array(value)), np.array(found, np.float64)


@pytest.mark.parametrize("name", EVERY_OBJECTIVE)
def test_mlx_has_the_gradient_of_the_finite_differences(name: str) -> None:
    for seed in range(4):
        case = Case(seed, EVERY_OBJECTIVE[name])
        expected = case.numpy_gradient()
        value, found = case.mlx_gradient()
        assert value == pytest.approx(case.numpy_loss(case.logits), abs=1e-5)
        assert np.abs(expected).max() > 1e-3, seed
        assert np.abs(found - expected).max() < 1e-5, seed


@pytest.mark.parametrize("gap", [2.0, -1.0, -3.0, -12.0, -40.0])
def test_k3_pulls_to_a_reference_however_far_it_is(gap: float) -> None:
    logprob, ratio = -5.0, 1.5

    def term(x: mx.array) -> mx.array:
        return mx.sum(loss_kl(mx, "k3", x, x0 - gap, x - x0 + np.log(ratio))[0])

    x0 = mx.array([[logprob]])
    value, slope = mx.value_and_grad(term)(x0)
    bounded = max(gap, -20.0)
    k3 = np.exp(-bounded) - 1.0 + bounded
    assert float(np.array(value)) == pytest.approx(ratio * k3, rel=1e-4)
    assert float(np.array(slope)[0, 0]) == pytest.approx(ratio * bounded, rel=1e-5)


class Tables:
    """Logits of every place by the tokens before it, so that any packing reads the same ones."""

    def __init__(self, samples: list[Sample], seed: int) -> None:
        prefixes = {s.token_ids[:end] for s in samples for end in range(1, len(s.token_ids))}
        self.number = {prefix: n for n, prefix in enumerate(sorted(prefixes))}
        rng = np.random.default_rng(seed)
        self.tables = rng.normal(size=(3, len(self.number), VOCAB)).astype(np.float32)

    def rows(self, batch: Batch) -> NDArray[np.int32]:
        """[P] which row of the tables each place reads."""
        return np.array(
            [
                self.number[tuple(batch.input_ids[row, : column + 1].tolist())]
                for row, column in zip(batch.logit_row, batch.logit_column, strict=True)
            ],
            np.int32,
        )


def step(
    groups: list[list[int]], samples: list[Sample], objective: Objective, tables: Tables
) -> tuple[float, Floats, Floats]:
    """Loss, gradient and sums of a step whose samples are split into these groups."""
    weights = normalisation_weights(samples, "sample")
    loss, gradient, sums = 0.0, np.zeros_like(tables.tables[0], np.float64), np.zeros(len(SUMS))
    for group in groups:
        (batch,) = pack([samples[i] for i in group], [weights[i] for i in group], max_tokens=1000)
        arrays, rows = BatchArrays(mx, batch), mx.array(tables.rows(batch))
        reference, average = (mx.array(table)[rows] for table in tables.tables[1:])
        others: dict[str, Any] = {
            "reference": reference if objective.kl_coef else None,
            "ema": average if objective.ema_kl_coef else None,
        }

        def of_table(
            table: mx.array, arrays: Any = arrays, rows: Any = rows, others: Any = others
        ) -> tuple[mx.array, mx.array]:
            return total_loss(mx, table[rows], arrays, objective, **others)

        (value, counted), found = mx.value_and_grad(of_table)(mx.array(tables.tables[0]))
        loss += float(np.array(value))
        gradient += np.array(found, np.float64)
        sums += np.array(counted, np.float64)
    return loss, gradient, sums


@pytest.mark.parametrize("name", EVERY_OBJECTIVE)
def test_no_split_changes_loss_gradient_or_counts(name: str) -> None:
    samples = random_samples(np.random.default_rng(7), num_samples=8, vocab=VOCAB)
    tables = Tables(samples, 8)
    objective = EVERY_OBJECTIVE[name]
    loss, gradient, sums = step([list(range(8))], samples, objective, tables)
    assert np.abs(gradient).max() > 1e-3
    for groups in ([[n] for n in range(8)], [[7, 0, 3], [5, 1], [6, 2, 4]]):
        split = step(groups, samples, objective, tables)
        assert split[0] == pytest.approx(loss, abs=1e-5)
        assert np.abs(split[1] - gradient).max() < 1e-6
        assert split[2] == pytest.approx(sums, rel=1e-5)


def test_the_cases_reach_what_they_are_for() -> None:
    samples = random_samples(np.random.default_rng(7), num_samples=8, vocab=VOCAB)
    tables = Tables(samples, 8)
    counts = {
        name: dict(zip(SUMS, step([list(range(8))], samples, o, tables)[2], strict=True))
        for name, o in EVERY_OBJECTIVE.items()
    }
    for name in ("ppo", "gspo", "cispo", "cispo_both", "dppo_tv", "dppo_kl", "gmpo", "sapo"):
        assert 0 < counts[name]["clipped"] < counts[name]["tokens"], name
    for name in ("icepop", "masked", "masked_gspo"):
        assert 0 < counts[name]["masked"] < counts[name]["tokens"], name
    for name in EVERY_OBJECTIVE:
        if name.startswith(("decoupled", "truncated", "icepop")):
            assert counts[name]["clipped"] == 0, name
