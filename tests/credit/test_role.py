"""Role credit: the baseline before the step, its move after it, its state."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn

from legos.credit.role import RAECredit
from legos.errors import ConfigError


def test_by_hand() -> None:
    credit = RAECredit(decay=0.5)
    first = credit.assign([make_episode({"first": 1.0, "second": -1.0})])
    assert first == [{"first": [1.0], "second": [-1.0]}]
    assert credit.baselines == {("arena", "first"): 0.5, ("arena", "second"): -0.5}
    later = credit.assign(
        [
            make_episode({"first": 1.0, "second": -1.0}),
            make_episode({"first": 0.0, "second": 0.0}),
        ]
    )
    assert later == [{"first": [0.5], "second": [-0.5]}, {"first": [-0.5], "second": [0.5]}]
    # Two plays of mean 0.5 move it as two updates would: 0.25 * 0.5 + 0.75 * 0.5.
    assert credit.baselines[("arena", "first")] == 0.5


def test_each_arena_and_role_has_its_own_baseline() -> None:
    credit = RAECredit(decay=0.0)
    credit.assign(
        [make_episode({"first": 1.0}, arena="a"), make_episode({"first": 3.0}, arena="b")]
    )
    assert credit.baselines == {("a", "first"): 1.0, ("b", "first"): 3.0}


REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=10)


@given(REWARDS, REWARDS, st.randoms(use_true_random=False))
def test_the_order_in_which_plays_end_does_not_matter(
    before: list[float], rewards: list[float], rng: random.Random
) -> None:
    order = list(range(len(rewards)))
    rng.shuffle(order)
    one, other = RAECredit(), RAECredit()
    for credit in (one, other):
        credit.assign([make_episode({"first": reward}) for reward in before])
    straight = one.assign([make_episode({"first": reward}) for reward in rewards])
    shuffled = other.assign([make_episode({"first": rewards[i]}) for i in order])
    assert [shuffled[order.index(i)] for i in range(len(rewards))] == straight
    assert one.baselines[("arena", "first")] == pytest.approx(
        other.baselines[("arena", "first")], abs=1e-12
    )


@given(st.floats(-10, 10), st.integers(1, 20))
def test_equal_rewards_move_the_baseline_as_one_by_one(reward: float, count: int) -> None:
    together, alone = RAECredit(), RAECredit()
    together.assign([make_episode({"first": reward}) for _ in range(count)])
    for _ in range(count):
        alone.assign([make_episode({"first": reward})])
    assert together.baselines[("arena", "first")] == pytest.approx(
        alone.baselines[("arena", "first")], abs=1e-12
    )


def test_the_state_goes_through_a_checkpoint() -> None:
    credit = RAECredit()
    credit.assign([make_episode({"first": 1.0, "second": -0.3})])
    fresh = RAECredit()
    fresh.restore(json.loads(json.dumps(credit.state())))
    assert fresh.baselines == credit.baselines
    episodes = [make_episode({"first": 0.7, "second": 0.2})]
    assert fresh.assign(episodes) == credit.assign(episodes)
    assert fresh.baselines == credit.baselines


def test_seats_that_are_not_trained_move_nothing() -> None:
    credit = RAECredit(decay=0.0)
    assigned = credit.assign([make_episode({"first": 5.0, "second": 1.0}, untrained=["first"])])
    assert assigned == [{"second": [1.0]}]
    assert credit.baselines == {("arena", "second against bot"): 1.0}


def test_turn_rewards_are_added_and_leave_the_baseline_alone() -> None:
    credit = RAECredit(decay=0.0)
    turns = {"first": [make_turn(reward=1.0), make_turn(reward=2.0), make_turn()]}
    assert credit.assign([make_episode({"first": 0.5}, turns=turns)]) == [
        {"first": [3.5, 2.5, 0.5]}
    ]
    assert credit.baselines == {("arena", "first"): 0.5}


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_decay_out_of_range(decay: float) -> None:
    with pytest.raises(ConfigError, match=f"decay is {decay}"):
        RAECredit(decay=decay)
