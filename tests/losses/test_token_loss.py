"""How the terms are put together, from log-probabilities alone: penalties, factors, counts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.losses.total import token_loss

Floats = NDArray[np.float64]
RATIO = np.array([[2.0, 0.5, 1.0, 0.25]])
LOGPROB = np.log(RATIO) - 3.0
ADVANTAGE = np.array([[1.0, -1.0, 2.0, 0.0]])
WEIGHT = np.array([[0.1, 0.2, 0.3, 0.4]])
REFERENCE = LOGPROB - np.array([[1.0, -1.0, 0.5, 0.0]])


def found(
    objective: Objective, reference: Any = None, average: Any = None, logprob: Any = LOGPROB
) -> tuple[float, dict[str, float]]:
    arrays: Any = SimpleNamespace(
        behaviour_logprob=np.full((1, 4), -3.0),
        advantage=ADVANTAGE,
        weight=WEIGHT,
        reference_logprob=None,
        mask=np.ones((1, 4)),
    )
    terms = {"logprob": logprob, "entropy": np.array([[0.1, 0.2, 0.3, 0.4]])}
    others = {"reference": reference, "ema": average}
    terms |= {name: other for name, other in others.items() if other is not None}
    loss, sums = token_loss(np, terms, arrays, objective, frozen=LOGPROB)
    return float(loss), dict(zip(SUMS, sums.tolist(), strict=True))


def slope(objective: Objective, reference: Any = None) -> Floats:
    """[1, 4] central differences, the policy held still where the loss detaches it."""
    steps = 1e-6 * np.eye(4)[:, None]
    return np.array(
        [
            [
                (up - down) / 2e-6
                for up, down in (
                    [found(objective, reference, logprob=LOGPROB + s)[0] for s in (step, -step)]
                    for step in steps
                )
            ]
        ]
    )


def test_the_sum_is_weighted() -> None:
    loss, _ = found(Objective(loss="reinforce"))
    assert loss == pytest.approx(-float((WEIGHT * ADVANTAGE * LOGPROB).sum()))


def test_divergences_in_the_loss_add_up_with_their_coefficients() -> None:
    plain, _ = found(Objective())
    both, _ = found(Objective(kl_coef=0.5, ema_kl_coef=0.25), REFERENCE, LOGPROB - 2.0)
    squares = 0.5 * np.array([[1.0, 1.0, 0.25, 0.0]])
    expected = float((WEIGHT * (0.5 * squares + 0.25 * 0.5 * 4.0)).sum())
    assert both - plain == pytest.approx(expected)


def test_a_factor_weighs_the_policy_term_and_nothing_else() -> None:
    proximal = Objective(loss="reinforce", anchor="proximal", entropy_coef=2.0, kl_coef=0.5)
    loss, _ = found(proximal, REFERENCE)
    policy = -RATIO * ADVANTAGE * LOGPROB
    rest = 0.25 * np.array([[1.0, 1.0, 0.25, 0.0]]) - 2.0 * np.array([[0.1, 0.2, 0.3, 0.4]])
    assert loss == pytest.approx(float((WEIGHT * (policy + rest)).sum()))


def test_the_weight_of_the_gap_has_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.losses.corrections.TRUNCATION_CAP", 1.5)
    objective = Objective(loss="reinforce", anchor="proximal")
    expected = -WEIGHT * np.minimum(RATIO, 1.5) * ADVANTAGE
    assert slope(objective) == pytest.approx(expected, abs=1e-8)


def test_what_is_masked_keeps_its_place_in_the_normaliser() -> None:
    objective = Objective(loss="reinforce", icepop=1.5)
    loss, sums = found(objective)
    kept = np.array([[0.0, 0.0, 1.0, 0.0]])
    assert loss == pytest.approx(-float((WEIGHT * kept * ADVANTAGE * LOGPROB).sum()))
    assert sums["tokens"] == 4.0
    assert sums["masked"] == 3.0


def test_sums_by_hand() -> None:
    objective = Objective(clip_low=0.6, icepop=1.5)
    _, sums = found(objective)
    expected = {
        "clipped": 1.0,
        "ratio": 3.75,
        "logprob_gap": 4 * np.log(2.0),
        "error_factor": 2.0 + 2.0 + 1.0 + 4.0,
    }
    assert {name: sums[name] for name in expected} == pytest.approx(expected)
