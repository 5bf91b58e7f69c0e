"""Sums: what counts as right, which questions are held out, and its levels."""

import asyncio
import random
from itertools import islice

import pytest

from arenas.sums import LEVELS, Sums
from legos import Task, play_task
from legos.fakes import ScriptedClient

QUESTION = Task(id="17 + 25", data=(17, "+", 25), level="sum2")


def reward(said: str, task: Task = QUESTION) -> float:
    """What an answer earns, to 17 + 25 by default; a token of the script is a character."""
    client = ScriptedClient([said])
    return asyncio.run(play_task(Sums(client), task, {"player": client})).rewards["player"]


@pytest.mark.parametrize(
    ("said", "earned"),
    [("42", 1.2), ("17 + 25 = 42.", 1.2), ("42, not 43", 0.2), ("-42", 0.2), ("", 0.2)],
)
def test_the_last_number_counts(said: str, earned: float) -> None:
    assert reward(said) == earned


@pytest.mark.parametrize(
    ("question", "said", "earned"),
    [
        ((13, "-", 5), "\u22128", 0.2),
        ((5, "-", 13), "\u22128", 1.2),
        ((99, "*", 99), "9,801", 1.2),
        ((2, "+", 3), "It is 4.5.", 0.2),
        ((99, "*", 99), "19,801", 0.2),
        ((40, "*", 20), "9,800", 0.2),
    ],
)
def test_a_number_is_read_with_its_sign_and_all_its_digits(
    question: tuple[int, str, int], said: str, earned: float
) -> None:
    task = Task(id="one", data=question, level="product2")
    assert reward(said, task) == earned


def test_an_answer_that_was_cut_off_earns_less() -> None:
    assert reward("It is 42" + " " * 20) == 1.0


def test_held_out_questions_are_never_trained_on() -> None:
    arena = Sums(None, hardest="product2")
    trained, held_out = (
        {(task.data[1], *sorted(task.data[::2])) for task in islice(tasks, 5000)}
        for tasks in (arena.tasks(random.Random(1)), arena.held_out(random.Random(2)))
    )
    assert not trained & held_out  # the other order asks the same
    assert {task.level for task in islice(arena.tasks(random.Random(3)), 200)} == set(LEVELS)


def test_held_out_questions_come_once_and_of_all_levels() -> None:
    held_out = list(Sums(None, hardest="sum2").held_out(random.Random(1)))
    assert len({task.id for task in held_out}) == len(held_out)
    few = [task.level == "sum1" for task in held_out]
    assert sum(few) >= 20
    assert sum(few[:64]) == sum(few)  # an evaluation of 64 plays asks all of one digit


def test_a_level_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="hardest is 'sum3'; expected one of: sum1, sum2, "):
        Sums(None, hardest="sum3")
