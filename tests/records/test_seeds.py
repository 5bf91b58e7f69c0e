"""Counter-based random numbers: the same anywhere, and even."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legos.records.seeds import mix, uniforms


def draw(seeds: list[int], counters: list[int]) -> list[float]:
    return uniforms(np.array(seeds, np.uint64), np.array(counters, np.uint64)).tolist()


FIRST = 0xE220A8397B1DCDAF  # splitmix64's first number from seed 0, in Vigna's reference code


def test_the_first_number_is_that_of_the_reference() -> None:
    assert mix(0) == FIRST >> 1
    assert draw([0], [0]) == [(FIRST >> 40) / 2**24]


def test_later_numbers_stay_the_same() -> None:
    assert mix(1, 2, 3) == 3851293329796251419
    assert draw([1], [0]) == [0.5665615200996399]


@given(st.lists(st.integers(-(1 << 70), 1 << 70), min_size=1, max_size=4))
def test_a_mix_fits_63_bits(numbers: list[int]) -> None:
    assert 0 <= mix(*numbers) < 1 << 63


def test_mixes_of_neighbours_differ() -> None:
    assert len({mix(seed, play) for seed in range(50) for play in range(50)}) == 2500
    assert mix(1, 2) != mix(2, 1)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 10_000))
def test_a_number_depends_on_seed_and_counter_alone(seed: int, counter: int) -> None:
    alone = draw([seed], [counter])[0]
    assert 0.0 <= alone < 1.0
    assert draw([7, seed, 9], [1, counter, 3])[1] == alone


def test_numbers_are_even_over_seeds_and_over_counters() -> None:
    by_seed = draw(list(range(20_000)), [0] * 20_000)
    by_counter = draw([5] * 20_000, list(range(20_000)))
    for numbers in (by_seed, by_counter):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert chi_square < 43.8  # 0.999 quantile, 19 degrees of freedom
    neighbours = np.corrcoef(by_counter[:-1], by_counter[1:])[0, 1]
    assert abs(neighbours) < 0.03
