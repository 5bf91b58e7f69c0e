"""Group credit: hand-computed advantages, and what holds for any group."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.credit.group import (
    DrGRPOCredit,
    GroupCredit,
    GRPOCredit,
    RLOOCredit,
    group_centered,
    group_standardised,
    leave_one_out,
)
from legos.errors import RecordError

RULES = (group_centered, group_standardised, leave_one_out)


def test_rules_by_hand() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 3.0])
    assert group_centered(rewards).tolist() == [0.0, -1.0, -1.0, 2.0]
    assert leave_one_out(rewards) == pytest.approx([0.0, -4 / 3, -4 / 3, 8 / 3])
    deviation = np.sqrt(2.0)  # squares 0, 1, 1, 4 over 3
    assert group_standardised(rewards) == pytest.approx(
        np.array([0.0, -1.0, -1.0, 2.0]) / deviation, rel=1e-5
    )


REWARDS = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@given(REWARDS, st.sampled_from(RULES))
def test_advantages_of_a_group_sum_to_zero(rewards: list[float], rule: Any) -> None:
    advantages = rule(np.array(rewards))
    assert abs(advantages.sum()) < 1e-6
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(advantages[order]) >= -1e-9).all()  # better rewards, better advantages


@given(REWARDS, st.floats(-50, 50))
def test_a_constant_on_all_rewards_changes_nothing(rewards: list[float], shift: float) -> None:
    for rule in (group_centered, leave_one_out):
        assert rule(np.array(rewards) + shift) == pytest.approx(rule(np.array(rewards)), abs=1e-9)


@given(REWARDS)
def test_leaving_one_out_is_the_mean_of_the_others(rewards: list[float]) -> None:
    others = [reward - (sum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]
    assert leave_one_out(np.array(rewards)) == pytest.approx(others, abs=1e-9)


@given(st.floats(-100, 100), st.integers(2, 9))
def test_equal_rewards_have_no_advantage(reward: float, size: int) -> None:
    for rule in RULES:
        assert not rule(np.full(size, reward)).any()  # not even the mean's rounding


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_needs_two_plays(rule: Any) -> None:
    with pytest.raises(RecordError, match="a group of 1"):
        rule(np.array([1.0]))


def test_plays_are_compared_by_arena_task_and_role() -> None:
    episodes = [
        make_episode({"first": 1.0, "second": -1.0}, task="a"),
        make_episode({"first": 5.0, "second": 2.0}, task="b"),
        make_episode({"first": 0.0, "second": 0.0}, task="a"),
        make_episode({"first": 9.0, "second": 9.0}, task="a", arena="other"),
        make_episode({"first": 3.0, "second": 2.0}, task="b"),
    ]
    credit = DrGRPOCredit()
    assert credit.assign(episodes) == [
        {"first": [0.5], "second": [-0.5]},
        {"first": [1.0], "second": [0.0]},
        {"first": [-0.5], "second": [0.5]},
        {"first": [0.0], "second": [0.0]},
        {"first": [-1.0], "second": [0.0]},
    ]
    assert credit.singletons == 2


def test_public_rules() -> None:
    episodes = [make_episode({"player": reward}) for reward in (1.0, 0.0, 0.0, 3.0)]

    def advantages(credit: GroupCredit) -> list[float]:
        return [assigned["player"][0] for assigned in credit.assign(episodes)]

    rewards = np.array([1.0, 0.0, 0.0, 3.0])
    assert advantages(GRPOCredit()) == group_standardised(rewards).tolist()
    assert advantages(DrGRPOCredit()) == group_centered(rewards).tolist()
    assert advantages(RLOOCredit()) == leave_one_out(rewards).tolist()


def test_a_single_play_is_counted_and_learns_nothing() -> None:
    credit = RLOOCredit()
    assert credit.assign([make_episode({"player": 7.0})]) == [{"player": [0.0]}]
    assert credit.assign([make_episode({"player": 7.0})]) == [{"player": [0.0]}]
    assert credit.singletons == 2
    fresh = RLOOCredit()
    fresh.restore(json.loads(json.dumps(credit.state())))
    assert fresh.singletons == 2


def test_plays_against_others_are_compared_with_each_other_only() -> None:
    episodes = [
        make_episode({"first": 1.0, "second": -1.0}),
        make_episode({"first": 0.0, "second": 0.0}),
        make_episode({"first": 100.0, "second": 100.0}, untrained=["first"]),
        make_episode({"first": 100.0, "second": 102.0}, untrained=["first"]),
    ]
    credit = DrGRPOCredit()
    assigned = credit.assign(episodes)
    assert [a.get("first") for a in assigned] == [[0.5], [-0.5], None, None]
    assert [a["second"] for a in assigned] == [[-0.5], [0.5], [-1.0], [1.0]]
    assert credit.singletons == 0


def test_earlier_versions_of_the_policy_are_compared_with_like_the_policy() -> None:
    earlier = make_episode({"first": 4.0, "second": 4.0}, untrained=["first"])
    named = replace(earlier.rollouts[0], seat="policy@40")
    episodes = [
        make_episode({"first": 1.0, "second": -1.0}),
        replace(earlier, rollouts=(named, *earlier.rollouts[1:])),
    ]
    assigned = DrGRPOCredit().assign(episodes)
    assert [a["second"] for a in assigned] == [[-2.5], [2.5]]


def test_a_turns_own_reward_counts_from_that_turn_on() -> None:
    turns = {"player": [make_turn(), make_turn(reward=0.25), make_turn(reward=-1.0)]}
    episodes = [
        make_episode({"player": 2.0}, turns=turns),
        make_episode({"player": 0.0}, turns={"player": [make_turn()]}),
    ]
    assigned = DrGRPOCredit().assign(episodes)
    assert assigned == [{"player": [0.25, 0.25, 0.0]}, {"player": [-1.0]}]


def test_a_seat_that_said_nothing_has_no_advantages() -> None:
    episodes = [make_episode({"player": reward}, turns={"player": []}) for reward in (1.0, 2.0)]
    assert GRPOCredit().assign(episodes) == [{"player": []}, {"player": []}]
