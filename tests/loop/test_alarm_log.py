"""Alarms on many steps together: equal rewards, and a policy that stands still."""

import logging
import random
from collections.abc import Sequence

import pytest
from made_records import make_episode
from msgspec.structs import replace

from legos.fakes import make_sample
from legos.loop.alarm_log import EQUAL_STEPS, STILL_STEPS, AlarmLog
from legos.records.episode import Episode, Rollout
from legos.records.group import Group
from legos.records.names import POLICY
from legos.records.sample import Sample

METRICS = {"entropy": 0.013, "reward_mean": 0.0}


def plays(*rewards: float, role: str = "solver", policy: str | None = POLICY) -> list[Episode]:
    seat = Rollout(role=role, seat="policy", policy=policy, turns=())
    return [replace(make_episode({role: r}), rollouts=(seat,)) for r in rewards]


def batch(
    episodes: Sequence[Episode] = (), samples: Sequence[Sample] = (), arena: str = "sums"
) -> Group:
    tokens = sum(len(sample.positions) for sample in samples)
    return Group(
        samples=tuple(samples), episodes=tuple(episodes), tokens_generated=tokens, arena=arena
    )


def logged(
    caplog: pytest.LogCaptureFixture, steps: Sequence[Sequence[Group]], **evaluated: float
) -> list[str]:
    """The messages of some steps."""
    caplog.clear()
    log = AlarmLog()
    log.evaluated = {name.replace("__", "/"): value for name, value in evaluated.items()}
    with caplog.at_level(logging.WARNING):
        for step, batches in enumerate(steps, start=1):
            log.after_step({**METRICS, "step": step}, batches, {POLICY: ""})
    return caplog.messages


def test_equal_rewards_of_many_steps_are_reported_once_with_their_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    never = [[batch(plays(0.0, 0.0))]] * (EQUAL_STEPS + 5)
    [told] = logged(caplog, never)
    assert told.startswith(
        f"step {EQUAL_STEPS}: all rewards of the last {EQUAL_STEPS} steps were equal in sums "
        "(solver 0), so nothing can be learned"
    )
    assert "docs/run/alarms.md" in told
    once = [*never[: EQUAL_STEPS - 1], [batch(plays(0.0, 1.0))], *never[: EQUAL_STEPS - 1]]
    assert logged(caplog, once) == []


def test_rewards_that_are_equal_by_role_teach_nothing_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seats = [*plays(1.0, role="first"), *plays(-1.0, role="second")]
    others = plays(1.0, 2.0, role="bot", policy=None)  # nobody is trained there
    failed = [replace(play, error="no", rewards={}) for play in plays(9.0)]
    [told] = logged(caplog, [[batch([*seats, *others, *failed])]] * EQUAL_STEPS)
    assert "(first 1, second -1)" in told
    assert logged(caplog, [[batch(seats), batch(plays(3.0, 4.0), arena="b")]] * 9) == []


def test_each_arena_of_a_mix_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    mix = [batch(plays(0.0, 1.0)), batch(plays(0.5, 0.5), arena="duel")]
    [told] = logged(caplog, [mix] * EQUAL_STEPS)
    assert "equal in duel (solver 0.5)" in told
    solved = {"eval__duel__exploitability": 0.01, "eval__nim__exploitability": 0.9}
    assert logged(caplog, [mix] * EQUAL_STEPS, **solved) == []
    solved = {"eval__nim__exploitability": 0.01}
    assert len(logged(caplog, [mix] * EQUAL_STEPS, **solved)) == 1


def test_a_solved_game_is_in_order(caplog: pytest.LogCaptureFixture) -> None:
    steps = [[batch(plays(-1.0, -1.0), answers(64, 64))]] * STILL_STEPS
    for solved in (
        {"eval__exploitability": 0.002},
        {"eval__exploitability": 0.4, "eval__optimal_move_rate": 0.99},
        {"eval__joint_value": 0.745, "eval__optimal_joint_value": 0.75},
    ):
        assert logged(caplog, steps, **solved) == []
    assert len(logged(caplog, steps, eval__exploitability=0.46)) == 2


def answers(same: int, number: int) -> list[Sample]:
    """Samples of one prompt, of which ``same`` are equal, with two answers each."""
    one = make_sample(range(8), positions=(2, 3, 6))
    other = [*one.token_ids]
    other[6] += 1
    return [
        replace(one, token_ids=tuple(other) if n >= same else one.token_ids) for n in range(number)
    ]


def test_a_policy_that_stands_still_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    games = plays(*random.Random(0).choices([-1.0, 1.0], k=64))
    still = [[batch(games, answers(64, 64))]] * (STILL_STEPS + 5)
    [told] = logged(caplog, still, eval__exploitability=0.46)
    assert told.startswith(
        f"step {STILL_STEPS}: the policy stands still: for {STILL_STEPS} steps it has given the "
        "same answer to the same prompt (100%, entropy 0.013 after 0.013 at first), at reward "
        "+0.000 and exploitability 0.46; raise entropy_coef"
    )
    moves = [[batch(games, answers(50, 64))]] * STILL_STEPS
    assert logged(caplog, moves, eval__exploitability=0.46) == []
    alone = [[batch(games, answers(1, 1))]] * STILL_STEPS  # nothing to compare with
    assert logged(caplog, alone) == []


def test_a_figure_that_still_changes_is_no_standstill(caplog: pytest.LogCaptureFixture) -> None:
    games = batch(plays(-1.0, 1.0), answers(9, 9))
    for name in ("reward_mean", "exploitability"):
        log = AlarmLog()
        caplog.clear()
        for step in range(1, STILL_STEPS + 1):
            log.evaluated = {"eval/exploitability": 0.5 - (name == "exploitability") * step / 500}
            reward = (name == "reward_mean") * step / 500
            log.after_step(
                {"entropy": 0.01, "reward_mean": reward, "step": step}, [games], {POLICY: ""}
            )
        assert caplog.messages == []
