"""Alarms that depend on several steps: equal rewards, and what one step can show by chance."""

import logging
from collections.abc import Sequence

import pytest
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.loop.alarm_log import AlarmLog
from legos.losses.alarms import EQUAL_STEPS
from legos.records.episode import Episode, Rollout
from legos.records.group import Group
from legos.records.names import POLICY


def plays(*rewards: float, role: str = "solver", policy: str | None = POLICY) -> list[Episode]:
    seat = Rollout(role=role, seat="policy", policy=policy, turns=())
    return [replace(make_episode({role: r}), rollouts=(seat,)) for r in rewards]


def batch(episodes: Sequence[Episode], arena: str = "sums") -> Group:
    return Group(episodes=tuple(episodes), arena=arena)


def logged(
    caplog: pytest.LogCaptureFixture, steps: Sequence[Sequence[Group]], **evaluated: float
) -> list[str]:
    """The messages of some steps."""
    caplog.clear()
    log = AlarmLog()
    log.evaluated = {name.replace("__", "/"): value for name, value in evaluated.items()}
    with caplog.at_level(logging.WARNING):
        for step, batches in enumerate(steps, start=1):
            log.after_step({"step": step}, batches, {POLICY: ""})
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


def test_the_steps_with_equal_rewards_are_a_metric_while_they_are_reported() -> None:
    log, equal, other = AlarmLog(), batch(plays(0.0, 0.0)), batch(plays(0.0, 1.0), arena="duel")

    def after(groups: Sequence[Group]) -> dict[str, float]:
        return log.after_step({"step": 40}, groups, {POLICY: ""})

    assert [after([equal]) for _ in range(EQUAL_STEPS - 1)] == [{}] * (EQUAL_STEPS - 1)
    assert after([equal]) == {"equal_reward_steps": EQUAL_STEPS}
    assert after([equal, other]) == {"batches/sums/equal_reward_steps": EQUAL_STEPS + 1}
    assert after([batch(plays(0.0, 1.0))]) == {}


def test_the_report_shows_three_answers(caplog: pytest.LogCaptureFixture) -> None:
    said = ("I think\nso", "no idea", "no idea", "42", "43")
    turns = [(make_turn(token_ids=tuple(map(ord, text))),) for text in said]
    seats = [Rollout(role="solver", seat="policy", policy=POLICY, turns=turn) for turn in turns]
    wrong = [replace(make_episode({"solver": 0.0}), rollouts=(seat,)) for seat in seats]
    [told] = logged(caplog, [[batch(wrong)]] * EQUAL_STEPS)
    assert "Answers of this step: 'I think\\nso', 'no idea', '42' (`legos watch`" in told


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
    steps = [[batch(plays(-1.0, -1.0))]] * EQUAL_STEPS
    for solved in (
        {"eval__exploitability": 0.002},
        {"eval__exploitability": 0.4, "eval__optimal_move_rate": 0.99},
        {"eval__joint_value": 0.745, "eval__optimal_joint_value": 0.75},
    ):
        assert logged(caplog, steps, **solved) == []
    assert len(logged(caplog, steps, eval__exploitability=0.46)) == 1
    agreed = {"eval__exploitability": 0.0, "eval__joint_value": 8.0}  # nobody gains alone
    assert len(logged(caplog, steps, **agreed, eval__optimal_joint_value=10.0)) == 1


def test_what_one_step_can_show_by_chance_is_told_when_the_next_shows_it_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, said = AlarmLog(), []
    shares = [0.87, 0.95, 0.87, 0.86, 0.95, 0.4]
    for step, share in enumerate(shares, start=1):
        caplog.clear()
        log.after_step({"step": step, "effective_sample_share": share}, [], {POLICY: ""})
        said += [(record.levelname, record.getMessage()[:8]) for record in caplog.records]
    assert said == [("WARNING", "step 4: "), ("ERROR", "step 6: ")]
