"""Weights and masks of the gap, by hand."""

from typing import Any

import numpy as np
import pytest

from legos.losses.corrections import correct

MASK = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
RHO = np.array([[1.5, 0.5, 8.0], [1.1, 0.9, 300.0]])


def corrected(icepop: float | None, *, weighted: bool) -> Any:
    weight, masked = correct(np, np.log(RHO), MASK, icepop=icepop, weighted=weighted)
    return weight, masked.tolist()


def approx(rows: list[list[float]]) -> Any:
    return pytest.approx(np.array(rows))


def test_the_weight_is_the_ratio_up_to_the_cap_where_the_loss_does_not_carry_it() -> None:
    weight, masked = corrected(None, weighted=True)
    assert weight == approx([[1.5, 0.5, 2.0], [1.1, 0.9, 0.0]])
    assert masked == [[0, 0, 0], [0, 0, 0]]


def test_icepop_drops_tokens_outside_its_range() -> None:
    weight, masked = corrected(1.6, weighted=True)
    assert weight == approx([[1.5, 0, 0], [1.1, 0.9, 0]])
    assert masked == [[0, 1, 1], [0, 0, 0]]
    weight, masked = corrected(1.6, weighted=False)  # the loss carries the ratio
    assert weight == approx([[1, 0, 0], [1, 1, 0]])
    assert masked == [[0, 1, 1], [0, 0, 0]]
