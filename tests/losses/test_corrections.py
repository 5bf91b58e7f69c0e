"""Weights and masks of the gap, by hand."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from legos.errors import ConfigError
from legos.losses.corrections import Corrections, correct
from legos.losses.objective import Objective

Floats = NDArray[np.float64]
MASK = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
RHO = np.array([[1.5, 0.5, 8.0], [1.1, 0.9, 300.0]])
ADVANTAGE = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]])


def corrected(corrections: Corrections, *, weighted: bool, rho: Floats = RHO) -> Any:
    weight, masked = correct(
        np,
        corrections,
        frozen=np.log(rho) - 1.0,
        behaviour_logprob=np.full((2, 3), -1.0),
        advantage=ADVANTAGE,
        mask=MASK,
        weighted=weighted,
    )
    return weight, masked.tolist()


def approx(rows: list[list[float]]) -> Any:
    return pytest.approx(np.array(rows))


def test_the_weight_is_the_ratio_where_the_loss_does_not_carry_it() -> None:
    weight, masked = corrected(Corrections(), weighted=True)
    assert weight == approx([[1.5, 0.5, 8.0], [1.1, 0.9, 0.0]])
    assert masked == [[0, 0, 0], [0, 0, 0]]


def test_truncation_by_token() -> None:
    weight, _ = corrected(Corrections(truncation="token", truncation_cap=2.0), weighted=True)
    assert weight == approx([[1.5, 0.5, 2.0], [1.1, 0.9, 0.0]])


def test_truncation_by_sample_takes_the_product() -> None:
    weight, _ = corrected(Corrections(truncation="sequence", truncation_cap=2.0), weighted=True)
    assert weight == approx([[2.0, 2.0, 2.0], [0.99, 0.99, 0.0]])


def test_icepop_drops_tokens_outside_its_range() -> None:
    corrections = Corrections(icepop=(0.6, 5.0))
    weight, masked = corrected(corrections, weighted=True)
    assert weight == approx([[1.5, 0, 0], [1.1, 0.9, 0]])
    assert masked == [[0, 1, 1], [0, 0, 0]]
    weight, masked = corrected(corrections, weighted=False)  # the loss carries the ratio
    assert weight == approx([[1, 0, 0], [1, 1, 0]])
    assert masked == [[0, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0.5, 1.81), [1, 1, 1]),  # the cube root of 6 is 1.817
        ((0.5, 1.82), [0, 0, 0]),
        ((0.999, 1.82), [0, 0, 0]),
    ],
)
def test_geometric_mask_by_hand(bounds: tuple[float, float], expected: list[int]) -> None:
    _, masked = corrected(Corrections(geometric_mask=bounds), weighted=False)
    assert masked[0] == expected
    assert masked[1] == ([1, 1, 0] if bounds[0] > 0.995 else [0, 0, 0])  # root of 0.99: 0.99499


def test_geometric_mask_does_not_know_the_length() -> None:
    for length in (1, 3):
        mask = np.array([[1.0] * length + [0.0] * (3 - length)])
        weight, _ = correct(
            np,
            Corrections(geometric_mask=(0.9, 1.11)),
            frozen=np.full((1, 3), math.log(1.1) - 1.0),
            behaviour_logprob=np.full((1, 3), -1.0),
            advantage=mask,
            mask=mask,
            weighted=False,
        )
        assert weight.tolist() == mask.tolist()


@pytest.mark.parametrize(("worst", "dropped"), [(99.0, 0), (101.0, 1), (1.1e-4, 0), (0.9e-4, 1)])
def test_an_outlier_vetoes_its_sample(worst: float, dropped: int) -> None:
    rho = RHO.copy()
    rho[0, 2] = worst
    _, masked = corrected(Corrections(outlier_veto=True), weighted=False, rho=rho)
    assert masked == [[dropped] * 3, [0, 0, 0]]  # 300 stands where nothing was chosen


def test_opsm_drops_negative_advantages_of_samples_that_became_rarer() -> None:
    rho = np.array([[0.5, 0.5, 0.5], [0.7, 0.7, 1.0]])
    gap = -math.log(0.5)
    _, masked = corrected(Corrections(opsm_delta=gap - 0.01), weighted=False, rho=rho)
    assert masked == [[0, 1, 0], [0, 0, 0]]  # the positive ones are kept; 0.357 is below delta
    _, masked = corrected(Corrections(opsm_delta=gap + 0.01), weighted=False, rho=rho)
    assert masked == [[0, 0, 0], [0, 0, 0]]
    _, masked = corrected(Corrections(opsm_delta=0.3), weighted=False, rho=rho)
    assert masked == [[0, 1, 0], [1, 1, 0]]


def test_masks_multiply() -> None:
    corrections = Corrections(icepop=(0.6, 5.0), opsm_delta=0.001)
    weight, masked = corrected(corrections, weighted=False)
    assert weight == approx([[1, 0, 0], [0, 0, 0]])
    assert masked == [[0, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"truncation_cap": 0.0}, r"truncation_cap is 0\.0"),
        ({"icepop": (1.5, 2.0)}, r"icepop keeps ratios from 1\.5 to 2\.0"),
        ({"icepop": (-0.5, 2.0)}, r"icepop keeps ratios"),
        ({"geometric_mask": (0.5, 0.9)}, r"geometric_mask keeps ratios from 0\.5 to 0\.9"),
        ({"opsm_delta": -1.0}, r"opsm_delta is -1\.0; expected 0 nats or more"),
        ({"truncation": "tokens"}, r"truncation is 'tokens'; expected one of 'none', 'token'"),
    ],
)
def test_ranges_without_a_ratio_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Corrections(**fields)


def test_one_gap_is_never_corrected_twice() -> None:
    corrections = Corrections(truncation="token")
    with pytest.raises(ConfigError, match=r"anchor is 'behaviour' and truncation is 'token'"):
        Objective(corrections=corrections)
    assert Objective(corrections=corrections, anchor="proximal").corrections == corrections
