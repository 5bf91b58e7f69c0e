"""Where time goes in the steps of a run."""

from pathlib import Path

import pytest
from made_runs import add_lines, add_play, answered, made_run, page_of, step_line
from msgspec.structs import replace


def test_a_step_has_the_time_of_engine_and_trainer_and_its_publication(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    shares = {"loop/engine_idle_share": 0.25, "loop/trainer_idle_share": 0.5}
    lines = [step_line(3, policy_version=3, **shares), step_line(4, policy_version=3, **shares)]
    add_lines(folder.metrics, lines)
    found = answered(page_of(folder.path), "timeline", run="one", steps=2)
    assert [each["step"] for each in found["steps"]] == [3, 4]
    assert found["total"] == 4
    last = found["steps"][-1]
    assert (last["seconds"], last["engine_s"]) == (30.0, pytest.approx(22.5))
    assert last["trainer_s"] == pytest.approx(15.0)
    assert [each["published"] for each in found["steps"]] == [True, False]
    assert found["lines"]["tokens_queued"] == [[1, 0.0], [2, 0.0], [3, 0.0], [4, 0.0]]


def test_a_share_that_was_not_measured_is_no_time(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1)
    add_lines(folder.metrics, [step_line(2, **{"loop/trainer_idle_share": 0.5})])
    step = answered(page_of(folder.path), "timeline", run="one")["steps"][-1]
    assert (step["engine_s"], step["trainer_s"]) == (None, pytest.approx(15.0))


def test_plays_have_the_times_of_their_first_question_and_last_answer(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    episode = add_play(folder, 1, "without times")
    [rollout] = episode.rollouts
    turns = [replace(rollout.turns[0], asked_at=at, answered_at=at + 2.0) for at in (5.0, 9.0)]
    timed = replace(episode, rollouts=(replace(rollout, turns=tuple(turns)),))
    folder.add_episodes(1, [timed])
    [play] = answered(page_of(folder.path), "timeline", run="one")["plays"]
    assert (play["number"], play["from"], play["to"]) == (2, 5.0, 11.0)
