"""The policy that the probabilities of whole answers make."""

import math

import pytest

from legos.games.scored import legal_shares


def test_moves_that_are_too_unlikely_for_a_float_keep_their_odds() -> None:
    shares, illegal = legal_shares(("long", "longer"), (-800.0, -800.0 - math.log(3.0)))
    assert shares == pytest.approx({"long": 0.75, "longer": 0.25})
    assert illegal == 1.0


def test_impossible_moves_are_even_and_one_among_others_is_never_made() -> None:
    assert legal_shares("xy", (-math.inf, -math.inf)) == ({"x": 0.5, "y": 0.5}, 1.0)
    shares, illegal = legal_shares("xy", (-math.inf, math.log(0.25)))
    assert shares == {"x": 0.0, "y": 1.0}
    assert illegal == pytest.approx(0.75)
