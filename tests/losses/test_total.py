"""The whole loss against the same equations written out token by token, and its limiting cases."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from packed import pack
from random_samples import Support, float64, random_samples
from total_loss import total_loss

from legos.fakes import make_sample
from legos.losses import policy as losses
from legos.losses.metrics import SUMS
from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import KlEstimator, Objective
from legos.losses.total import BatchArrays
from legos.records.batch import Batch

Floats = NDArray[np.float64]
VOCAB = 7


def random_case(seed: int, support: Support = "mixed") -> tuple[Batch, Floats, Floats, Floats]:
    """A batch, and the logits of the policy, the reference and the average."""
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, vocab=VOCAB, support=support)
    (batch,) = pack(samples, normalisation_weights(samples, "token"), max_tokens=1000)
    logits, reference, average = rng.normal(size=(3, len(batch.logit_row), VOCAB))
    batch = float64(batch)
    return replace(batch, weight=batch.weight / batch.weight.sum()), logits, reference, average


def loss_of(
    batch: Batch, objective: Objective, logits: Floats, reference: Any = None, average: Any = None
) -> float:
    arrays = BatchArrays(np, batch)
    loss, _ = total_loss(np, logits, arrays, objective, reference=reference, ema=average)
    return float(loss)


def sums_of(
    batch: Batch, objective: Objective, logits: Floats, reference: Any = None, average: Any = None
) -> dict[str, float]:
    arrays = BatchArrays(np, batch)
    _, sums = total_loss(np, logits, arrays, objective, reference=reference, ema=average)
    return dict(zip(SUMS, sums.tolist(), strict=True))


def support_of(batch: Batch, place: int) -> list[int]:
    if not batch.logit_restricted[place]:
        return list(range(VOCAB))
    return [token for token in batch.logit_legal[place].tolist() if token >= 0]


def distribution(batch: Batch, logits: Floats, place: int) -> dict[int, float]:
    """Token -> probability at a place, over what could be sampled there."""
    scaled = {
        token: math.exp(logits[place, token] / batch.logit_temperature[place])
        for token in support_of(batch, place)
    }
    return {token: weight / sum(scaled.values()) for token, weight in scaled.items()}


def legal_entropy(batch: Batch, policy: dict[int, float], place: int) -> float:
    legal = [token for token in batch.logit_legal[place].tolist() if token >= 0] or list(policy)
    total = sum(policy[token] for token in legal)
    return -sum(policy[token] / total * math.log(policy[token] / total) for token in legal)


def divergence(
    policy: dict[int, float], other: dict[int, float], token: int, objective: Objective
) -> float:
    if objective.kl_estimator == "exact":
        return sum(p * math.log(p / other[token]) for token, p in policy.items())
    return 0.5 * math.log(policy[token] / other[token]) ** 2


def clipped(ratio: float, advantage: float, objective: Objective) -> float:
    low, high = objective.clip_range
    inside = min(max(ratio, 1 - low), 1 + high)
    surrogate = min(ratio * advantage, inside * advantage)
    if advantage < 0:
        surrogate = max(surrogate, losses.DUAL_CLIP * advantage)
    return -surrogate


def written_out(
    batch: Batch, objective: Objective, logits: Floats, reference: Floats, average: Floats
) -> float:
    """The loss as a sum over tokens, one at a time."""
    total = 0.0
    for sample in range(len(batch.mask)):
        places = [
            (int(place), int(token), index)
            for index, (place, token) in enumerate(
                zip(batch.logit_index[sample], batch.target[sample], strict=True)
            )
            if batch.mask[sample, index]
        ]
        logs = [
            math.log(distribution(batch, logits, place)[token])
            - batch.behaviour_logprob[sample, index]
            for place, token, index in places
        ]
        if objective.loss == "gspo":
            logs = [sum(logs) / len(logs)] * len(logs)
        for (place, token, index), log in zip(places, logs, strict=True):
            policy = distribution(batch, logits, place)
            loss = clipped(math.exp(log), batch.advantage[sample, index], objective)
            for other, coefficient in (
                (reference, objective.kl_coef),
                (average, objective.ema_kl_coef),
            ):
                against = distribution(batch, other, place)
                loss += coefficient * divergence(policy, against, token, objective)
            loss -= objective.entropy_coef * legal_entropy(batch, policy, place)
            total += batch.weight[sample, index] * loss
    return total


@pytest.mark.parametrize("support", ["open", "legal", "restricted", "mixed"])
@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_the_loss_is_what_its_equations_say(
    support: Support, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimators: tuple[KlEstimator, ...] = ("k2", "exact")
    for seed, (estimator, kl, ema, entropy, dual) in enumerate(
        itertools.product(estimators, [0.0, 0.3], [0.0, 0.2], [0.0, 0.1], [1e9, 1.5])
    ):
        batch, *logits = random_case(seed, support)
        monkeypatch.setattr(losses, "DUAL_CLIP", dual)
        objective = Objective(
            loss=kind,
            clip_low=0.3,
            clip_high=0.1,
            kl_estimator=estimator,
            kl_coef=kl,
            ema_kl_coef=ema,
            entropy_coef=entropy,
        )
        loss = loss_of(
            batch, objective, logits[0], logits[1] if kl else None, logits[2] if ema else None
        )
        assert loss == pytest.approx(written_out(batch, objective, *logits), rel=1e-9, abs=1e-12)


def test_the_sums_are_counted_over_chosen_tokens_alone() -> None:
    batch, logits, reference, _ = random_case(3)
    sums = sums_of(batch, Objective(kl_coef=1.0), logits, reference)
    chosen = [
        (int(place), int(token), behaviour)
        for place, token, behaviour in zip(
            batch.logit_index[batch.mask],
            batch.target[batch.mask],
            batch.behaviour_logprob[batch.mask],
            strict=True,
        )
    ]
    logs = [math.log(distribution(batch, logits, p)[t]) - b for p, t, b in chosen]
    others = [math.log(distribution(batch, reference, p)[t]) - b for p, t, b in chosen]
    assert sums["tokens"] == len(chosen) == batch.mask.sum()
    assert sums["ratio"] == pytest.approx(sum(map(math.exp, logs)))
    assert sums["ratio_spread"] == pytest.approx(sum(math.expm1(x) ** 2 for x in logs))
    assert sums["k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in logs))
    assert sums["logprob_gap"] == pytest.approx(sum(map(abs, logs)))
    gaps = [log - other for log, other in zip(logs, others, strict=True)]
    assert sums["kl"] == pytest.approx(sum(min(math.exp(-d) - 1 + d, 10.0) for d in gaps))
    assert sums["ema_kl"] == 0.0
    entropies = [legal_entropy(batch, distribution(batch, logits, p), p) for p, _, _ in chosen]
    assert sums["entropy"] == pytest.approx(sum(entropies))


def gradient(batch: Batch, objective: Objective, logits: Floats, *others: Any) -> Floats:
    """Central differences of the loss, [P, V]."""
    found = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[index] = 1e-6
        up = loss_of(batch, objective, logits + step, *others)
        found[index] = (up - loss_of(batch, objective, logits - step, *others)) / 2e-6
    return found


def score_gradient(batch: Batch, logits: Floats) -> Floats:
    """sum of -weight * advantage * d log pi / d logits, from the derivative of the softmax."""
    found = np.zeros_like(logits)
    for sample, index in zip(*np.nonzero(batch.mask), strict=True):
        place, token = int(batch.logit_index[sample, index]), int(batch.target[sample, index])
        scale = batch.weight[sample, index] * batch.advantage[sample, index]
        scale /= batch.logit_temperature[place]
        for other, probability in distribution(batch, logits, place).items():
            found[place, other] -= scale * ((other == token) - probability)
    return found


def with_ratio(batch: Batch, logits: Floats, log_ratio: float) -> Batch:
    """The batch as if its tokens had been sampled with a probability exp(-log_ratio) as large."""
    behaviour = np.zeros_like(batch.behaviour_logprob)
    for index in zip(*np.nonzero(batch.mask), strict=True):
        policy = distribution(batch, logits, int(batch.logit_index[index]))
        behaviour[index] = math.log(policy[int(batch.target[index])]) - log_ratio
    return replace(batch, behaviour_logprob=behaviour)


@pytest.mark.parametrize("support", ["open", "legal", "restricted", "mixed"])
def test_on_policy_it_is_reinforce(support: Support) -> None:
    batch, logits, _, _ = random_case(5, support)
    batch = with_ratio(batch, logits, 0.0)
    found = gradient(batch, Objective(), logits)
    assert np.abs(found).max() > 0.01
    assert found == pytest.approx(score_gradient(batch, logits), abs=1e-8)


def test_a_sequence_ratio_on_policy_shares_the_mean_advantage() -> None:
    batch, logits, _, _ = random_case(6)
    batch = with_ratio(batch, logits, 0.0)
    counts = batch.mask.sum(axis=1, keepdims=True)
    shared = np.where(batch.mask, batch.advantage.sum(axis=1, keepdims=True) / counts, 0.0)
    found = gradient(batch, Objective(loss="gspo"), logits)
    expected = score_gradient(replace(batch, advantage=shared), logits)
    assert found == pytest.approx(expected, abs=1e-8)


def test_of_one_token_the_sequence_ratio_is_the_token_ratio() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, num_samples=8, vocab=VOCAB, max_length=2)
    (batch,) = pack(samples, [0.125] * 8, max_tokens=100)
    batch = float64(batch)
    logits = rng.normal(size=(len(batch.logit_row), VOCAB))
    token, sequence = (
        Objective(loss=kind, clip_low=0.1, clip_high=0.3) for kind in ("ppo", "gspo")
    )
    assert loss_of(batch, token, logits) == loss_of(batch, sequence, logits)
    assert gradient(batch, token, logits) == pytest.approx(
        gradient(batch, sequence, logits), abs=1e-12
    )


def test_without_advantage_only_regularisers_are_left() -> None:
    batch, logits, reference, average = random_case(7)
    batch = replace(batch, advantage=np.zeros_like(batch.advantage))
    assert loss_of(batch, Objective(), logits) == 0.0
    assert not gradient(batch, Objective(), logits).any()
    full = Objective(kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.1)
    parts = [
        loss_of(batch, Objective(kl_coef=0.3), logits, reference),
        loss_of(batch, Objective(ema_kl_coef=0.2), logits, None, average),
        loss_of(batch, Objective(entropy_coef=0.1), logits),
    ]
    assert min(map(abs, parts)) > 1e-3
    assert loss_of(batch, full, logits, reference, average) == pytest.approx(sum(parts), rel=1e-9)


@pytest.mark.parametrize("kl_estimator", ["k2", "exact"])
def test_no_divergence_from_itself(kl_estimator: Any) -> None:
    batch, logits, _, _ = random_case(8)
    batch = replace(batch, advantage=np.zeros_like(batch.advantage))
    objective = Objective(kl_coef=1.0, ema_kl_coef=1.0, kl_estimator=kl_estimator)
    assert loss_of(batch, objective, logits, logits, logits) == pytest.approx(0.0, abs=1e-15)
    found = gradient(batch, objective, logits, logits.copy(), logits.copy())
    assert found == pytest.approx(np.zeros_like(found), abs=1e-6)


def constant_advantage(batch: Batch, value: float) -> Batch:
    return replace(batch, advantage=np.where(batch.mask, value, 0.0))


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "expected"),
    [
        (1.0, 1.0, -1.2),  # clipped above
        (1.0, -1.0, -math.exp(-1.0)),  # not clipped below: the token is to become likelier
        (-1.0, 0.5, math.exp(0.5)),  # not clipped above: the token is to become rarer
        (-1.0, -1.0, 0.8),  # clipped below
        (-1.0, 2.0, 3.0),  # bounded by the dual clip
        (-0.5, 2.0, 1.5),
        (1.0, 50.0, -1.2),
        (1.0, -50.0, -math.exp(-20.0)),  # the log-ratio stops at -20
    ],
)
@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_clips_by_hand(advantage: float, log_ratio: float, expected: float, kind: Any) -> None:
    batch, logits, _, _ = random_case(9)
    batch = constant_advantage(with_ratio(batch, logits, log_ratio), advantage)
    objective = Objective(loss=kind, clip_low=0.2, clip_high=0.2)
    assert loss_of(batch, objective, logits) == pytest.approx(expected, rel=1e-9)
    cut = expected in (-1.2, 0.8) or expected == -3.0 * advantage
    slope = np.abs(gradient(batch, objective, logits)).max()
    if cut:
        assert slope == 0.0
    elif abs(log_ratio) < 20:
        assert slope > 0.01
    assert sums_of(batch, objective, logits)["clipped"] == (batch.mask.sum() if cut else 0.0)


def test_what_is_masked_is_not_read() -> None:
    batch, logits, reference, average = random_case(10)
    objective = Objective(loss="gspo", kl_coef=0.3, ema_kl_coef=0.2, entropy_coef=0.1)
    assert not batch.mask.all()
    rubbish = {
        "behaviour_logprob": np.where(batch.mask, batch.behaviour_logprob, -7.0),
        "advantage": np.where(batch.mask, batch.advantage, 1e3),
        "target": np.where(batch.mask, batch.target, 2).astype(np.int32),
        "logit_index": np.where(batch.mask, batch.logit_index, 1).astype(np.int32),
    }
    logits_of_all = (logits, reference, average)
    same = replace(batch, **rubbish)
    assert loss_of(same, objective, *logits_of_all) == loss_of(batch, objective, *logits_of_all)
    assert sums_of(same, objective, *logits_of_all) == sums_of(batch, objective, *logits_of_all)


def test_the_bonus_leaves_illegal_tokens_alone() -> None:
    batch, logits, _, _ = random_case(11, "legal")
    batch = constant_advantage(batch, 0.0)
    found = gradient(batch, Objective(entropy_coef=1.0), logits)
    legal = np.zeros_like(found, bool)
    for place, tokens in enumerate(batch.logit_legal):
        legal[place, tokens[tokens >= 0]] = True
    assert np.abs(found[legal]).max() > 0.01
    assert found[~legal] == pytest.approx(0.0, abs=1e-9)


def test_losses_of_parts_add_up() -> None:
    rng = np.random.default_rng(12)
    samples = random_samples(rng, num_samples=8, vocab=VOCAB)
    weights = normalisation_weights(samples, "token")
    table = {row: rng.normal(size=(8, VOCAB)) for row in {s.token_ids[:-1] for s in samples}}

    def loss(chosen: list[int]) -> float:
        (batch,) = pack([samples[i] for i in chosen], [weights[i] for i in chosen], max_tokens=1000)
        rows = sorted({samples[i].token_ids[:-1] for i in chosen}, key=lambda r: (len(r), r))
        logits = np.stack(
            [
                table[rows[row]][column]
                for row, column in zip(batch.logit_row, batch.logit_column, strict=True)
            ]
        )
        return loss_of(float64(batch), Objective(entropy_coef=0.1), logits)

    assert loss(list(range(8))) == pytest.approx(loss([0, 3, 4]) + loss([1, 2, 5, 6, 7]), rel=1e-6)


def test_an_empty_legal_set_means_that_anything_goes() -> None:
    (batch,) = pack([make_sample((1, 2, 3))], [1.0], max_tokens=10)
    uniform = np.zeros((1, VOCAB))
    assert sums_of(float64(batch), Objective(), uniform)["entropy"] == pytest.approx(
        math.log(VOCAB)
    )
