"""Advantages from a table of values: by hand, at its limits, and with less noise than returns."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn

from legos.credit import GAECredit, SameViewCredit
from legos.errors import ConfigError
from legos.protocols import CreditAssigner
from legos.records.episode import Episode


def play(reward: float, *prompts: int, rewards: tuple[float | None, ...] = ()) -> Episode:
    given = rewards or (None,) * len(prompts)
    turns = [make_turn((p,), reward=r) for p, r in zip(prompts, given, strict=True)]
    return make_episode({"player": reward}, turns={"player": turns})


def test_an_advantage_is_the_change_of_value_and_a_share_of_the_later_ones() -> None:
    # Returns of prompt 1: 1, -1, 0; of prompt 2: 1, 0. V = 0 and 0.5.
    episodes = [play(1.0, 1, 2), play(-1.0, 1, 3), play(0.0, 1, 2)]
    assert GAECredit(trace=0.5).assign(episodes) == [
        {"player": [0.5 + 0.5 * 0.5, 0.5]},
        {"player": [-1.0, 0.0]},
        {"player": [0.5 - 0.5 * 0.5, -0.5]},
    ]


def test_turn_rewards_and_the_discount_count() -> None:
    # Returns: 2 + 0.5 * 4 = 4 and 4; 0 + 0.5 * 0 = 0 and 0. V = 2 and 2.
    episodes = [play(3.0, 1, 2, rewards=(2.0, 1.0)), play(0.0, 1, 2)]
    assert GAECredit(discount=0.5, trace=0.0).assign(episodes) == [
        {"player": [2.0 + 0.5 * 2.0 - 2.0, 1.0 + 3.0 - 2.0]},
        {"player": [0.5 * 2.0 - 2.0, -2.0]},
    ]


def test_turns_of_earlier_steps_lose_weight_until_they_are_dropped() -> None:
    credit = GAECredit(decay=0.5)
    credit.assign([play(1.0, 1), play(1.0, 1), play(9.0, 7)])
    # The two earlier turns count 0.5 each: V = (0.5 + 0.5 + 0 + 0) / 3.
    assert credit.assign([play(0.0, 1), play(0.0, 1)])[0] == {"player": [pytest.approx(-1 / 3)]}
    assert len(credit.state()["values"]) == 2
    for _ in range(6):
        credit.assign([play(0.0, 1)])
    [[arena, role, _, _, _]] = credit.state()["values"]
    assert (arena, role) == ("arena", "player")


@given(
    st.lists(
        st.tuples(st.floats(-9, 9), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
        min_size=2,
        max_size=6,
    )
)
def test_without_memory_and_next_values_it_equals_the_same_view(
    drawn: list[tuple[float, list[int]]],
) -> None:
    episodes = [play(reward, 1, 2, 3, *prompts) for reward, prompts in drawn]  # all views repeat
    found = GAECredit(trace=1.0, decay=0.0).assign(episodes)
    for one, other in zip(found, SameViewCredit().assign(episodes), strict=True):
        assert one["player"] == pytest.approx(other["player"], abs=1e-9)


def test_values_have_less_noise_than_returns_where_luck_follows_a_move() -> None:
    # Move 1 leads to prompt 1 more often than move 0; a coin decides the rest of the play.
    def deviation(credit: CreditAssigner) -> float:
        rng, steps = random.Random(0), []
        for _ in range(40):
            moves = [rng.randrange(2) for _ in range(64)]
            nexts = [1 if rng.random() < 0.4 + 0.2 * move else 2 for move in moves]
            won = [1.0 if rng.random() < (0.6 if n == 1 else 0.4) else -1.0 for n in nexts]
            plays = [play(reward, 0, n) for reward, n in zip(won, nexts, strict=True)]
            assigned = [found["player"][0] for found in credit.assign(plays)]
            by_move = [[a for a, m in zip(assigned, moves, strict=True) if m == k] for k in (0, 1)]
            steps.append(np.mean(by_move[1]) - np.mean(by_move[0]))
        assert np.mean(steps) > 0.0
        return float(np.std(steps[20:]))

    assert deviation(GAECredit(trace=0.0)) < 0.5 * deviation(SameViewCredit())


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trace is 1\.5; expected 0 <= trace <= 1"):
        GAECredit(trace=1.5)
    with pytest.raises(ConfigError, match=r"decay is 1\.0; expected 0 <= decay < 1"):
        GAECredit(decay=1.0)
