"""How far some work has come, for people."""

import pytest

from legos.records.count import Count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (Count(), ""),
        (Count(64), "64 plays"),
        (Count(4520, unit="positions"), "4,520 positions"),
        (Count(128, begun=128, ended=37), "37 of 128 plays, 91 running"),
        (Count(1280, begun=1280, ended=1280), "1,280 of 1,280 plays"),
        (Count(begun=5, ended=2), "3 running"),
        (Count(7, unit="passes"), ""),
        (Count(7, begun=3, ended=2, unit="passes"), "pass 3 of 7"),
    ],
)
def test_it_says_what_is_known(count: Count, text: str) -> None:
    assert count.text == text
