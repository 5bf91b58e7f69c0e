"""What a policy does in the same positions and tasks over the steps of a run."""

from math import exp
from pathlib import Path

import pytest
from made_runs import add_play, answered, made_run, page_of
from msgspec.structs import replace

from legos.records.message import Sampling

QUESTION = "Nim: 3 left, last one wins.\nMoves: 1 2 3"


def test_moves_of_a_position_have_their_probabilities_by_step(runs: Path) -> None:
    folder = made_run(runs / "one")
    for step, move in ((1, "1"), (1, "1"), (2, "3")):
        choices = ("1", "2", "3")
        add_play(folder, step, move, question=QUESTION, arena="nim", role="first", choices=choices)
    add_play(folder, 2, "1", question="Nim: 1 left, last one wins.\nMoves: 1", arena="nim")
    [position] = answered(page_of(folder.path), "policy", run="one")["positions"]
    assert (position["role"], position["asked"], position["num_moves"]) == ("first", QUESTION, 3)
    probability = pytest.approx(exp(-0.5))
    assert position["moves"] == {"1": [[1, probability]], "3": [[2, probability]]}
    assert {each["move"]: each["optimal"] for each in position["optimal"]} == {
        "1": 0.0,
        "2": 0.0,
        "3": 1.0,
    }


def test_moves_of_an_evaluation_at_temperature_0_have_no_probability(runs: Path) -> None:
    folder, choices = made_run(runs / "one"), ("1", "2", "3")
    play = add_play(folder, 1, "1", question=QUESTION, arena="nim", role="first", choices=choices)
    [seat] = play.rollouts
    greedy = replace(seat, sampling=Sampling(temperature=0.0))
    folder.add_episodes(1, [replace(play, rollouts=(greedy,))], evaluation=True)
    [position] = answered(page_of(folder.path), "policy", run="one")["positions"]
    assert position["num_moves"] == 1


def test_a_task_has_its_answers_at_several_steps(runs: Path) -> None:
    folder = made_run(runs / "one")
    play = add_play(folder, 1, "cut off", task="unlike")
    failed = replace(play, task=replace(play.task, id="sum"), error="x", failure="failed")
    for step in range(0, 100, 10):
        folder.add_episodes(step, [failed], evaluation=True)
        add_play(folder, step, f"answer {step}", task="sum", evaluation=True)
    add_play(folder, 3, "once", task="other")
    found = answered(page_of(folder.path), "policy", run="one")
    [task] = found["tasks"]
    assert (task["task"], task["asked"]) == ("sum", "One?")
    assert [row["step"] for row in task["answers"]] == [0, 10, 30, 40, 50, 60, 80, 90]
    assert task["answers"][-1]["answer"] == "answer 90"
    assert found["positions"] == []


def test_a_mix_of_a_game_and_a_text_has_positions_and_answers(runs: Path) -> None:
    folder = made_run(runs / "one")
    for step in (1, 2):
        choices = ("1", "2", "3")
        add_play(folder, step, "1", question=QUESTION, arena="nim", task="4", choices=choices)
        add_play(folder, step, f"answer {step}", arena="sums", task="sum")
    found = answered(page_of(folder.path), "policy", run="one")
    assert [each["arena"] for each in found["positions"]] == ["nim"]
    assert [each["task"] for each in found["tasks"]] == ["sum"]
