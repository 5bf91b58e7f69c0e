"""Samples refuse what cannot be trained on."""

import math
from typing import Any

import pytest

from legos.errors import RecordError
from legos.fakes import make_sample


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": ()}, "without a chosen token"),
        ({"positions": (0,)}, r"positions 0\.\.0 leave 1\.\.2"),
        ({"positions": (3,)}, r"positions 3\.\.3 leave 1\.\.2"),
        ({"positions": (2, 1)}, r"positions \(2, 1\) do not increase"),
        ({"positions": (1, 1)}, r"positions \(1, 1\) do not increase"),
        ({"logprobs": (-1.0, -1.0)}, r"1 chosen tokens has fields of lengths \(2, 1, 1, 1\)"),
        ({"versions": (0, 0)}, r"lengths \(1, 2, 1, 1\)"),
        ({"advantages": ()}, r"lengths \(1, 1, 0, 1\)"),
        ({"legal": ((1,), (2,))}, r"lengths \(1, 1, 1, 2\)"),
        ({"logprobs": math.nan}, "log-probability nan is not a finite number"),
        ({"logprobs": -math.inf}, "log-probability -inf is not a finite number"),
        ({"logprobs": 0.5}, r"log-probability 0\.5 is not a finite number <= 0"),
        ({"advantages": math.inf}, "advantage inf is not finite, .*; look at the rewards of 't'"),
        ({"advantages": -1e200}, r"advantage -1e\+200 is .* above 1e\+12; look at the rewards"),
        ({"temperature": 0.0}, "temperature 0.0 have no ratio"),
        ({"temperature": math.inf}, "temperature inf have no ratio"),
        ({"restricted": True, "legal": ((1, 2),)}, r"token 3 was chosen where only \(1, 2\)"),
        ({"restricted": True}, "needs its legal tokens"),
    ],
)
def test_a_sample_refuses_what_cannot_be_trained_on(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make_sample((1, 2, 3), group="t", **fields)


def test_one_bad_number_among_good_ones_is_found() -> None:
    with pytest.raises(RecordError, match="log-probability nan"):
        make_sample((1, 2, 3), positions=(1, 2), logprobs=(-1.0, math.nan))
    with pytest.raises(RecordError, match="advantage nan"):
        make_sample((1, 2, 3), positions=(1, 2), advantages=(1.0, math.nan))


def test_a_certain_token_is_taken() -> None:
    assert make_sample(logprobs=0.0).logprobs == (0.0,)
    assert make_sample(logprobs=1e-6).logprobs == (1e-6,)


def test_the_oldest_token_gives_the_age() -> None:
    assert make_sample((1, 2, 3), positions=(1, 2), versions=(7, 5)).oldest_version == 5
