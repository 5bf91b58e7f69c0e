"""The policy term by hand: ratios, clips, and what is masked."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from total_loss import chosen

from legos.losses.objective import Objective
from legos.losses.ratio import log_ratio, sequence_log_ratio
from legos.losses.total import policy_loss

MASK = np.array([[1.0, 1.0], [1.0, 0.0]])
RATIOS = np.array([[1.5, 0.5], [0.5, 9.0]])
ADVANTAGES = np.array([[1.0, -1.0], [2.0, 7.0]])


def losses(objective: Objective) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return policy_loss(
        np,
        np.log(RATIOS) - 1.0,
        objective,
        chosen(behaviour_logprob=-np.ones((2, 2)), advantage=ADVANTAGES, mask=MASK),
    )


def test_token_ratios_are_clipped_one_by_one() -> None:
    loss, cut = losses(Objective(clip_low=0.3, clip_high=0.1))
    assert loss == pytest.approx(np.array([[-1.1, 0.7], [-1.0, 0.0]]))
    assert cut.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    loss, cut = losses(Objective(loss="gspo", clip_low=0.1, clip_high=0.1))
    first = math.sqrt(1.5 * 0.5)  # below 0.9: clipped for the token with a negative advantage
    assert loss == pytest.approx(np.array([[-first, 0.9], [-1.0, 0.0]]))
    assert cut.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_the_log_ratio_is_clamped_before_it_is_raised() -> None:
    gap = log_ratio(np, np.array([[-1.0, -50.0, 0.0]]), np.array([[-2.0, -1.0, -50.0]]))
    assert gap.tolist() == [[1.0, -20.0, 20.0]]


def test_the_mean_of_a_sequence_leaves_out_what_is_masked() -> None:
    mean = sequence_log_ratio(np, np.array([[1.0, 3.0], [1.0, 3.0]]), MASK)
    assert mean.tolist() == [[2.0], [1.0]]


@pytest.mark.parametrize("loss", ["gspo", "gmpo"])
def test_a_sample_without_a_chosen_token_adds_nothing(loss: Any) -> None:
    found, cut = policy_loss(
        np,
        np.log(RATIOS) - 1.0,
        Objective(loss=loss),
        chosen(
            behaviour_logprob=-np.ones((2, 2)),
            advantage=ADVANTAGES,
            mask=np.array([[1.0, 1.0], [0.0, 0.0]]),
        ),
    )
    assert found[1].tolist() == cut[1].tolist() == [0.0, 0.0]
    assert np.isfinite(found).all()
