"""The replay buffer keeps the newest samples and draws them all with equal chance."""

from collections import Counter

import pytest

from legos.errors import ConfigError, TrainerError
from legos.fakes import make_sample
from legos.loop.replay import ReplayBuffer


def test_the_newest_samples_are_drawn_evenly_and_repeatably() -> None:
    samples = [make_sample((1, n), versions=n) for n in range(6)]
    buffers = [ReplayBuffer(4, seed=1), ReplayBuffer(4, seed=1)]
    draws: list[tuple[int, ...]] = []
    for buffer in buffers:
        buffer.add(samples)
        draws.append(tuple(sample.token_ids[1] for sample in buffer.draw(4000)))
    assert draws[0] == draws[1]
    drawn = Counter(draws[0])
    assert drawn.keys() == {2, 3, 4, 5}
    assert all(abs(number - 1000) < 150 for number in drawn.values())
    assert buffers[0].figures(5) == {
        "samples": 4.0,
        "added": 6.0,
        "drawn": 4000.0,
        "reuse": 4000 / 6,
        "age_mean": 1.5,
    }


def test_an_empty_buffer_and_no_room_are_refused() -> None:
    with pytest.raises(TrainerError, match="add samples before the first draw"):
        ReplayBuffer(1).draw(1)
    with pytest.raises(ConfigError, match="capacity is 0"):
        ReplayBuffer(0)
