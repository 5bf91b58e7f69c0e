"""Every further credit rule by hand, and what holds for all of them."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.credit import (
    RULES,
    HierarchicalCredit,
    JointCredit,
    MaxRLCredit,
    ReinforcePPCredit,
    SameViewCredit,
    TurnCredit,
    make_credit,
)
from legos.credit.maxrl import over_mean
from legos.credit.overlong import OverlongPenalty, overlong_penalty
from legos.credit.whitened import whiten
from legos.errors import ConfigError, RecordError
from legos.protocols import CreditAssigner
from legos.records.episode import Episode
from legos.records.names import POLICY

NAMES = tuple(RULES)


def plays(*rewards: float) -> list[Episode]:
    return [make_episode({"player": reward}) for reward in rewards]


def firsts(credit: CreditAssigner, episodes: Sequence[Episode]) -> list[float]:
    return [assigned["player"][0] for assigned in credit.assign(episodes)]


def test_maxrl_weighs_a_success_by_how_rare_it_is() -> None:
    assert over_mean(np.array([1.0, 0.0, 0.0, 0.0])).tolist() == [3.0, -1.0, -1.0, -1.0]
    assert over_mean(np.array([1.0, 1.0, 1.0, 0.0])) == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert over_mean(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert firsts(MaxRLCredit(), plays(2.0, 0.0)) == [1.0, -1.0]
    with pytest.raises(RecordError, match=r"MaxRL credit got reward -1\.0; it needs rewards >= 0"):
        MaxRLCredit().assign(plays(1.0, -1.0))


def test_whitening_counts_tokens() -> None:
    # Mean (3 * 1 + 1 * 5) / 4 = 2, variance (3 * 1 + 1 * 9) / 4 = 3.
    found = whiten(np.array([1.0, 5.0]), np.array([3.0, 1.0]))
    assert found == pytest.approx(np.array([-1.0, 3.0]) / math.sqrt(3.0), rel=1e-5)
    assert whiten(np.array([2.0, 2.0]), np.array([1.0, 1.0])).tolist() == [0.0, 0.0]
    assert whiten(np.full(3, 100.1), np.ones(3)).tolist() == [0.0, 0.0, 0.0]  # not 1e-8 by rounding


def test_reinforce_plus_plus_whitens_discounted_returns_over_the_step() -> None:
    turns = {"player": [make_turn(token_ids=(3, 4)), make_turn(reward=1.0)]}
    episodes = [
        make_episode({"player": 2.0}, turns=turns),  # returns 0.5 * 3, 3
        make_episode({"player": -1.0}, task="other"),
    ]
    assigned = ReinforcePPCredit(discount=0.5).assign(episodes)
    returns, counts = np.array([1.5, 3.0, -1.0]), np.array([2.0, 1.0, 1.0])
    expected = whiten(returns, counts)
    found = [*assigned[0]["player"], *assigned[1]["player"]]
    assert found == pytest.approx(expected.tolist())
    assert counts @ found == pytest.approx(0.0)


def test_its_baseline_is_the_group_and_singletons_stay_out() -> None:
    episodes = [*plays(1.0, 0.0), make_episode({"player": 50.0}, task="alone")]
    credit = ReinforcePPCredit(baseline=True)
    assert firsts(credit, episodes) == pytest.approx([1.0, -1.0, 0.0], rel=1e-5)
    assert credit.singletons == 1
    others = [make_episode({"player": r}, task="rich") for r in (11.0, 10.0)]
    assert firsts(credit, [*plays(1.0, 0.0), *others]) == pytest.approx([1, -1, 1, -1], rel=1e-5)


def family(child_rewards: Sequence[float], reward: float) -> list[Episode]:
    """A proposer whose children all carry the same task id, and its children."""
    children = [make_episode({"player": r}, task="problem", arena="solver") for r in child_rewards]
    parent = replace(make_episode({"player": reward}, task="seed"), children=tuple(children))
    return [parent, *children]


def test_siblings_alone_are_compared_in_a_spawn_tree() -> None:
    episodes = [*family([1.0, 0.0], 0.5), *family([5.0, 2.0], 1.5), *family([7.0], 1.0)]
    credit = HierarchicalCredit()
    assert firsts(credit, episodes) == [-0.5, 0.5, -0.5, 0.5, 1.5, -1.5, 0.0, 0.0]
    assert credit.singletons == 1  # the only child
    flat = firsts(make_credit("dr_grpo"), episodes)
    assert flat[1:3] == [-2.0, -3.0]  # without the tree, attempts at other problems count


def test_trees_may_be_deep() -> None:
    leaves = plays(1.0, 0.0)
    middle = replace(make_episode({"player": 3.0}, task="m"), children=tuple(leaves))
    other = make_episode({"player": 1.0}, task="m")
    top = replace(make_episode({"player": 9.0}, task="t"), children=(middle, other))
    assert firsts(HierarchicalCredit(), [top, middle, *leaves, other]) == [0, 1.0, 0.5, -0.5, -1.0]


def test_a_team_shares_one_advantage() -> None:
    episodes = [
        make_episode({"asker": 1.0, "guesser": 3.0}),
        make_episode({"asker": 0.0, "guesser": 0.0}),
    ]
    credit = JointCredit()
    assert credit.assign(episodes) == [
        {"asker": [1.0], "guesser": [1.0]},
        {"asker": [-1.0], "guesser": [-1.0]},
    ]
    assert credit.assign([make_episode({"asker": 1.0, "guesser": 3.0}, task="alone")]) == [
        {"asker": [0.0], "guesser": [0.0]}
    ]
    assert credit.singletons == 1


def test_a_team_is_compared_with_teams_of_the_same_players_only() -> None:
    def play(reward: float, guesser: str) -> Episode:
        untrained = [] if guesser == POLICY else ["guesser"]
        episode = make_episode({"asker": reward, "guesser": reward}, untrained=untrained)
        asker, other = episode.rollouts
        return replace(episode, rollouts=(asker, replace(other, seat=guesser)))

    episodes = [
        *(play(reward, POLICY) for reward in (9.0, 8.0)),
        play(7.0, f"{POLICY}@3"),  # an earlier version counts as the policy
        *(play(reward, "bot") for reward in (1.0, 0.0)),
    ]
    assert [given["asker"][0] for given in JointCredit().assign(episodes)] == [1, 0, -1, 0.5, -0.5]


def test_turns_are_compared_with_the_same_turn_of_other_plays() -> None:
    long = {"player": [make_turn(reward=1.0), make_turn(), make_turn()]}
    short = {"player": [make_turn(), make_turn(reward=3.0)]}
    episodes = [
        make_episode({"player": 8.0}, turns=long),  # returns 1 + 2, 4, 8
        make_episode({"player": 1.0}, turns=short),  # returns 2, 4
    ]
    credit = TurnCredit(discount=0.5)
    assert credit.assign(episodes) == [{"player": [0.5, 0.0, 0.0]}, {"player": [-0.5, 0.0]}]
    assert credit.singletons == 1  # the third turn
    assert firsts(TurnCredit(), plays(3.0, 1.0)) == [1.0, -1.0]


def test_turns_of_the_same_view_are_compared_across_tasks() -> None:
    def play(task: str, reward: float, *prompts: tuple[int, ...]) -> Episode:
        said = {"player": [make_turn(prompt) for prompt in prompts]}
        return make_episode({"player": reward}, task=task, turns=said)

    episodes = [
        play("a", 1.0, (1,), (1, 7)),
        play("b", -1.0, (1,), (1, 8)),
        play("b", 3.0, (2,), (1, 7)),
    ]
    credit = SameViewCredit()
    assert credit.assign(episodes) == [
        {"player": [1.0, -1.0]},
        {"player": [-1.0, 0.0]},
        {"player": [0.0, 1.0]},
    ]
    assert credit.singletons == 2


@pytest.mark.parametrize("name", ["turn", "same_view", "gae"])
def test_turns_of_other_arenas_and_roles_are_not_compared(name: str) -> None:
    episodes = [
        make_episode({"first": 1.0, "second": 5.0}),
        make_episode({"first": 3.0, "second": 11.0}),
        make_episode({"first": 100.0, "second": 100.0}, arena="other"),
    ]
    assert make_credit(name).assign(episodes) == [
        {"first": [-1.0], "second": [-3.0]},
        {"first": [1.0], "second": [3.0]},
        {"first": [0.0], "second": [0.0]},
    ]


def test_turns_of_other_tasks_are_not_compared() -> None:
    episodes = [*plays(1.0, 3.0), make_episode({"player": 100.0}, task="other")]
    assert firsts(TurnCredit(), episodes) == [-1.0, 1.0, 0.0]


def test_teams_of_other_arenas_are_not_compared() -> None:
    episodes = [*plays(1.0, 3.0), make_episode({"player": 100.0}, arena="other")]
    assert firsts(JointCredit(), episodes) == [-1.0, 1.0, 0.0]


def test_baselines_are_of_one_arena_task_and_role() -> None:
    episodes = [
        make_episode({"first": 1.0, "second": 10.0}),
        make_episode({"first": 3.0, "second": 12.0}),
        *(make_episode({"first": r, "second": r}, arena="other") for r in (50.0, 52.0)),
        *(make_episode({"first": r, "second": r}, task="other") for r in (70.0, 72.0)),
    ]
    for number, assigned in enumerate(ReinforcePPCredit(baseline=True).assign(episodes)):
        sign = 1.0 if number % 2 else -1.0
        assert [assigned[role][0] for role in ("first", "second")] == pytest.approx([sign, sign])


def test_a_view_met_twice_in_one_play_has_no_other_play_to_be_compared_with() -> None:
    turns = {"player": [make_turn((1,), reward=1.0), make_turn((1,))]}
    credit = SameViewCredit()
    assert credit.assign([make_episode({"player": 0.0}, turns=turns)]) == [{"player": [0.0, 0.0]}]
    assert credit.singletons == 2


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (120, -1.0)]
)
def test_the_overlong_penalty_is_a_line(length: int, expected: float) -> None:
    assert overlong_penalty(length, limit=100, margin=20) == expected


def test_a_penalty_moves_rewards_before_they_are_compared() -> None:
    long = {"player": [make_turn(token_ids=tuple(range(10)))]}
    episodes = [make_episode({"player": 1.0}, turns=long), *plays(1.0)]
    inner = HierarchicalCredit()
    credit = OverlongPenalty(inner, limit=10, margin=4)
    assert firsts(credit, episodes) == [-0.5, 0.5]
    assert episodes[0].rewards == {"player": 1.0}
    tree = [*family([1.0, 0.0], 0.5), *family([5.0, 2.0], 1.5)]  # parents are still found
    assert firsts(credit, tree) == firsts(HierarchicalCredit(), tree)
    credit.assign(plays(1.0))
    assert (credit.singletons, credit.state()) == (1, {"singletons": 1})
    with pytest.raises(ConfigError, match=r"margin is 11 and limit 10"):
        OverlongPenalty(inner, limit=10, margin=11)


def test_names_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"no credit rule 'hierarchica'; did you mean 'hierarch"):
        make_credit("hierarchica")
    with pytest.raises(ConfigError, match=r"credit 'rae' cannot be made: .*'discount'"):
        make_credit("rae", discount=0.9)
    with pytest.raises(ConfigError, match="discount is 2"):
        make_credit("turn", discount=2.0)
    with pytest.raises(ConfigError, match="discount is -1"):
        make_credit("reinforce_pp", discount=-1.0)


REWARDS = st.lists(st.floats(0, 100), min_size=1, max_size=8)


@given(REWARDS, st.sampled_from(NAMES))
def test_every_rule_gives_each_trained_turn_a_finite_advantage(
    rewards: list[float], name: str
) -> None:
    episodes = [
        make_episode({"a": r, "b": 1.0}, turns={"a": [make_turn()] * 2, "b": []}, untrained=["b"])
        for r in rewards
    ]
    for assigned in make_credit(name).assign(episodes):
        assert set(assigned) == {"a"}
        assert len(assigned["a"]) == 2
        assert all(map(math.isfinite, assigned["a"]))


@given(REWARDS, REWARDS, st.sampled_from(NAMES))
def test_every_rule_goes_on_exactly_from_its_state(
    before: list[float], after: list[float], name: str
) -> None:
    credit, fresh = make_credit(name), make_credit(name)
    credit.assign(plays(*before))
    fresh.restore(json.loads(json.dumps(credit.state())))
    assert fresh.assign(plays(*after)) == credit.assign(plays(*after))
    assert fresh.state() == credit.state()


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_comparing_rules_have_no_advantage_on_average(rewards: list[float]) -> None:
    for name in ("hierarchical", "joint", "turn", "same_view", "gae", "reinforce_pp_baseline"):
        assert sum(firsts(make_credit(name), plays(*rewards))) == pytest.approx(0.0, abs=1e-6)


def test_no_rule_chokes_on_a_step_without_plays() -> None:
    for name in NAMES:
        assert make_credit(name).assign([]) == []
