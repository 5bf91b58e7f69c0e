"""Each policy loss by hand: its value, where its trust region acts, its slope and its limits.

Slopes are central differences over the tokens' log-probabilities, with the policy's own (where a
loss detaches it) held still. They are compared with gradients derived on paper.
"""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from total_loss import chosen

from legos.losses.objective import Objective
from legos.losses.policy import LOSSES
from legos.losses.total import policy_loss

Floats = NDArray[np.float64]
STEP = 1e-6
# Two samples: three chosen tokens, and two.
MASK = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
BEHAVIOUR = np.log(np.array([[0.5, 0.2, 0.01], [0.4, 0.6, 0.5]]))
RATIO = np.array([[1.5, 0.5, 8.0], [1.1, 0.9, 4.0]])
LOGPROB = BEHAVIOUR + np.log(RATIO)
UP = np.ones((2, 3))
MIXED = np.array([[1.0, -2.0, 1.0], [-1.0, 0.5, 9.0]])


def loss_of(
    objective: Objective, logprob: Floats, advantage: Floats, frozen: Floats | None = None
) -> tuple[Floats, Floats]:
    return policy_loss(
        np,
        logprob,
        objective,
        chosen(behaviour_logprob=BEHAVIOUR, advantage=advantage, mask=MASK),
        frozen=frozen,
    )


def slope(objective: Objective, advantage: Floats) -> Floats:
    """[S, A] derivative of the sum of all losses with respect to each log-probability."""
    found = np.zeros_like(LOGPROB)
    for index in np.ndindex(*LOGPROB.shape):
        step = np.zeros_like(LOGPROB)
        step[index] = STEP
        up, down = (
            loss_of(objective, LOGPROB + sign * step, advantage, frozen=LOGPROB)[0].sum()
            for sign in (1.0, -1.0)
        )
        found[index] = (up - down) / (2 * STEP)
    return found


def close(expected: Any, tolerance: float = 1e-7) -> Any:
    return pytest.approx(np.array(expected), abs=tolerance)


def test_reinforce_takes_every_token_as_its_own() -> None:
    objective = Objective(loss="reinforce")
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    assert loss == close(-MIXED * LOGPROB * MASK)
    assert not cut.any()
    assert slope(objective, MIXED) == close(-MIXED * MASK)


def test_ppo_by_hand() -> None:
    objective = Objective(loss="ppo", clip_low=0.2, clip_high=0.28)
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    assert loss == close([[-1.28, 1.6, -1.28], [1.1, -0.45, 0.0]])
    assert cut.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert slope(objective, MIXED) == close([[0, 0, 0], [1.1, -0.45, 0]])


def test_cispo_by_hand() -> None:
    low, high = LOSSES["cispo"].clip_range or (0.0, 0.0)
    objective = Objective(loss="cispo", clip_low=low, clip_high=high)
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    weight = np.array([[1.5, 0.5, 5.0], [1.1, 0.9, 0.0]])
    assert loss == close(-weight * MIXED * LOGPROB)
    assert cut.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert slope(objective, MIXED) == close(-weight * MIXED)  # the weight itself has no slope


def test_cispo_without_bounds_is_reinforce_with_the_importance_weight() -> None:
    objective = Objective(loss="cispo", clip_low=1.0, clip_high=math.inf)
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    plain, _ = loss_of(Objective(loss="reinforce"), LOGPROB, MIXED)
    assert loss == close(RATIO * plain)
    assert not cut.any()
    assert slope(objective, MIXED) == close(RATIO * slope(Objective(loss="reinforce"), MIXED))


def test_dppo_looks_at_probabilities_and_not_at_ratios() -> None:
    # p - q: 0.25, -0.1, 0.07; 0.04, -0.06. The rare token's ratio of 8 does not matter.
    objective = Objective(loss="dppo_tv", clip_low=0.08, clip_high=0.2)
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    assert cut.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert loss == close([[0, 0, -8.0], [1.1, -0.45, 0]])
    assert slope(objective, MIXED) == close([[0, 0, -8.0], [1.1, -0.45, 0]])


def test_dppo_keeps_what_comes_back_towards_the_sampler() -> None:
    objective = Objective(loss="dppo_tv", clip_low=0.0, clip_high=0.0)
    _, cut = loss_of(objective, LOGPROB, -MIXED)
    assert cut.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_dppo_by_the_divergence_of_two_outcomes() -> None:
    p, q = 0.75, 0.5
    divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    assert divergence == pytest.approx(0.143841, abs=1e-6)
    for bound, expected in ((0.1438, 1.0), (0.1439, 0.0)):
        objective = Objective(loss="dppo_kl", clip_low=bound, clip_high=bound)
        assert loss_of(objective, LOGPROB, UP)[1][0, 0] == expected


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_drops_only_what_is_pushed_further_away(name: Any) -> None:
    objective = Objective(loss=name, clip_low=1e-6, clip_high=1e-6)
    # Ratios above 1 are dropped where A > 0, ratios below it where A < 0.
    assert loss_of(objective, LOGPROB, UP)[1].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert loss_of(objective, LOGPROB, -UP)[1].tolist() == [[0, 1, 0], [0, 1, 0]]


def test_dppo_has_a_bound_of_its_own_on_each_side() -> None:
    for name in ("dppo_tv", "dppo_kl"):
        only_up = Objective(loss=name, clip_low=1.0, clip_high=1e-6)
        assert not loss_of(only_up, LOGPROB, -UP)[1].any()
        only_down = Objective(loss=name, clip_low=1e-6, clip_high=1.0)
        assert not loss_of(only_down, LOGPROB, UP)[1].any()


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_without_a_bound_is_the_unclipped_surrogate(name: Any) -> None:
    objective = Objective(loss=name, clip_low=math.inf, clip_high=math.inf)
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    assert not cut.any()
    assert loss == close(-RATIO * MIXED * MASK)
    assert slope(objective, MIXED) == close(-RATIO * MIXED * MASK)


def test_dppo_caps_the_ratio_in_its_gradient() -> None:
    objective = Objective(loss="dppo_tv", clip_low=1.0, clip_high=1.0)
    far = BEHAVIOUR + math.log(1000.0)
    loss, _ = loss_of(objective, far - 7.0, UP)  # 1000 e^-7 is below the cap of 20
    assert loss[0, 0] == pytest.approx(-1000 * math.exp(-7.0))
    assert loss_of(objective, far, UP)[0][0, 0] == pytest.approx(-20.0)


def test_a_certain_token_has_a_finite_divergence() -> None:
    objective = Objective(loss="dppo_kl", clip_low=0.05, clip_high=0.05)
    for logprob in (0.0, 1e-5, -100.0):
        loss, _ = loss_of(objective, np.full((2, 3), logprob), MIXED)
        assert np.isfinite(loss).all()


def test_gspo_by_hand() -> None:
    objective = Objective(loss="gspo", clip_low=0.1, clip_high=0.5)
    s, short = 6.0 ** (1 / 3), 0.99**0.5  # means of 1.5 * 0.5 * 8 and 1.1 * 0.9
    loss, cut = loss_of(objective, LOGPROB, MIXED)
    assert loss == close([[-1.5, 2 * s, -1.5], [short, -0.5 * short, 0]])
    assert cut.tolist() == [[1, 0, 1], [0, 0, 0]]
    # Only the second token of the first sample is not clipped; its ratio is of all three.
    assert slope(objective, MIXED) == close([[0, 2 * s, 0], [short, -0.5 * short, 0]])


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_under_one_advantage_a_sequence_loss_has_the_gradient_of_its_form_by_sample(
    name: Any,
) -> None:
    objective = Objective(loss=name, clip_low=5.0, clip_high=5.0)
    advantage = np.array([[1.5, 1.5, 1.5], [-0.5, -0.5, -0.5]])
    count = MASK.sum(axis=1, keepdims=True)

    def by_sample(logprob: Floats) -> float:
        """-A s of each sample as often as it has tokens, s moving with every token."""
        mean = ((logprob - BEHAVIOUR) * MASK).sum(axis=1, keepdims=True) / count
        return float((-advantage[:, :1] * np.exp(mean) * count).sum())

    expected = np.zeros_like(LOGPROB)
    for index in np.ndindex(*LOGPROB.shape):
        step = np.zeros_like(LOGPROB)
        step[index] = STEP
        expected[index] = (by_sample(LOGPROB + step) - by_sample(LOGPROB - step)) / (2 * STEP)
    assert slope(objective, advantage) == close(expected)


def test_gmpo_by_hand() -> None:
    objective = Objective(loss="gmpo", clip_low=0.4, clip_high=0.4)
    loss, cut = loss_of(objective, LOGPROB, UP)
    inside = (math.log(0.5) + 0.4 + 0.4) / 3  # 1.5 and 8 are above exp(0.4), 0.5 may be low
    mean = math.exp(inside)
    short = 0.99**0.5
    assert loss == close([[-mean] * 3, [-short, -short, 0]])
    assert cut.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert slope(objective, UP) == close([[0, -mean, 0], [-short, -short, 0]])
    down, cut = loss_of(objective, LOGPROB, -UP)
    mean = math.exp((math.log(1.5) - 0.4 + math.log(8.0)) / 3)
    assert down[0] == close([mean] * 3)
    assert cut[0].tolist() == [0, 1, 0]


def test_gmpo_has_a_range_of_its_own_on_each_side() -> None:
    objective = Objective(loss="gmpo", clip_low=0.1, clip_high=0.7)
    up = math.exp((math.log(1.5) + math.log(0.5) + 0.7) / 3)
    assert loss_of(objective, LOGPROB, UP)[0][0] == close([-up] * 3)
    down = math.exp((math.log(1.5) - 0.1 + math.log(8.0)) / 3)
    assert loss_of(objective, LOGPROB, -UP)[0][0] == close([down] * 3)
    none = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])  # without advantage: both sides
    inside = math.exp((math.log(1.5) - 0.1 + 0.7) / 3)
    assert loss_of(objective, LOGPROB, none)[0][0] == close([0, 0, -inside])


def test_gmpo_without_a_bound_is_the_unclipped_sequence_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("legos.losses.policy.DUAL_CLIP", math.inf)
    free = Objective(loss="gmpo", clip_low=math.inf, clip_high=math.inf)
    whole = Objective(loss="gspo", clip_low=1.0, clip_high=math.inf)
    assert loss_of(free, LOGPROB, MIXED)[0] == close(loss_of(whole, LOGPROB, MIXED)[0])
    assert slope(free, MIXED) == close(slope(whole, MIXED))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("log_ratio", [-1.0, -0.1, 0.1, 1.0])
def test_of_one_token_the_sequence_losses_are_the_token_loss(
    advantage: float, log_ratio: float
) -> None:
    def one(objective: Objective) -> tuple[float, float]:
        loss, cut = policy_loss(
            np,
            np.array([[log_ratio - 1.0]]),
            objective,
            chosen(
                behaviour_logprob=np.array([[-1.0]]),
                advantage=np.array([[advantage]]),
                mask=np.ones((1, 1)),
            ),
        )
        return float(loss[0, 0]), float(cut[0, 0])

    low, high = 1.0 - math.exp(-0.4), math.exp(0.4) - 1.0
    token = one(Objective(loss="ppo", clip_low=low, clip_high=high))
    assert one(Objective(loss="gspo", clip_low=low, clip_high=high)) == pytest.approx(token)
    assert one(Objective(loss="gmpo", clip_low=0.4, clip_high=0.4)) == pytest.approx(token)


def test_sapo_by_hand() -> None:
    objective = Objective(loss="sapo")
    loss, cut = loss_of(objective, LOGPROB, MIXED)

    def gate(tau: float, ratio: float) -> float:
        return 1.0 / (1.0 + math.exp(-tau * (ratio - 1.0)))

    assert loss[0, 0] == pytest.approx(-4.0 * gate(1.0, 1.5))
    assert loss[0, 1] == pytest.approx(2.0 * 4.0 / 1.05 * gate(1.05, 0.5))
    # gate' = tau g (1 - g); times 4 / tau, and the slope of the ratio is the ratio.
    opened = 4.0 * gate(1.0, 1.5) * (1.0 - gate(1.0, 1.5))
    assert slope(objective, MIXED)[0, 0] == pytest.approx(-1.5 * opened, abs=1e-7)
    assert cut.tolist() == [[0, 0, 1], [0, 0, 0]]  # a ratio of 8 has lost nearly all of its slope


def test_sapos_gate_is_open_where_it_is_on_policy_and_as_tau_vanishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_policy = (
        policy_loss(
            np,
            BEHAVIOUR + STEP,
            Objective(loss="sapo"),
            chosen(behaviour_logprob=BEHAVIOUR, advantage=MIXED, mask=MASK),
        )[0]
        - policy_loss(
            np,
            BEHAVIOUR - STEP,
            Objective(loss="sapo"),
            chosen(behaviour_logprob=BEHAVIOUR, advantage=MIXED, mask=MASK),
        )[0]
    )
    assert on_policy / (2 * STEP) == close(-MIXED * MASK, 1e-6)
    sapo = Objective(loss="sapo")
    monkeypatch.setattr("legos.losses.policy.SAPO_TAUS", (1e-4, 1e-4))
    assert slope(sapo, MIXED) == close(-RATIO * MIXED * MASK, 1e-3)
    monkeypatch.setattr("legos.losses.policy.SAPO_TAUS", (100.0, 100.0))
    assert slope(sapo, MIXED) == close(np.zeros((2, 3)), 1e-2)  # anything off policy is dropped


@pytest.mark.parametrize(
    "name", ["reinforce", "ppo", "cispo", "dppo_tv", "dppo_kl", "sapo", "gspo", "gmpo"]
)
def test_taken_to_the_policy_itself_every_loss_is_the_plain_gradient(name: Any) -> None:
    objective = Objective(loss=name, anchor="proximal")
    _, cut = loss_of(objective, LOGPROB, MIXED)
    assert not cut.any()
    assert slope(objective, MIXED) == close(-MIXED * MASK)


def test_extreme_ratios_stay_finite() -> None:
    for name in ("reinforce", "ppo", "cispo", "dppo_tv", "dppo_kl", "sapo", "gspo", "gmpo"):
        objective = Objective(loss=name)
        for logprob in (-200.0, 0.0):
            loss, _ = loss_of(objective, np.full((2, 3), logprob), -MIXED)
            assert np.isfinite(loss).all(), name
