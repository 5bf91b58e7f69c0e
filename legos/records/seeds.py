"""Counter-based random numbers, which depend only on a seed and a counter, not on the order."""

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def absorb(state: int, number: int) -> int:
    """Add an integer to a 64-bit hash state (splitmix64; Steele et al., OOPSLA 2014)."""
    state = (state + number + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def mix(*numbers: int) -> int:
    """Hash integers into one 63-bit integer: the upper bits of the state that absorbed them."""
    state = 0
    for number in numbers:
        state = absorb(state, number)
    return state >> 1


def uniforms(seeds: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float32]:
    """[N] uniform numbers in [0, 1) with 24 bits, each a function of its (seed, counter) only."""
    state = seeds + (counters + np.uint64(1)) * np.uint64(GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(40)).astype(np.float64) * 2.0**-24).astype(np.float32)
