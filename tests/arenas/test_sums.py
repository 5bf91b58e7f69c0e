"""Sums: what counts as right, which questions are held out, and its levels."""

import asyncio
import random
from itertools import islice

import pytest

from arenas.sums import LEVELS, Sums
from legos import Task, play_task
from legos.fakes import ScriptedClient

QUESTION = Task(id="17 + 25", data=(17, "+", 25), level="sum2")


def reward(said: str) -> float:
    """What an answer to 17 + 25 earns; a token of the script is a character."""
    client = ScriptedClient([said])
    return asyncio.run(play_task(Sums(client), QUESTION, {"player": client})).rewards["player"]


@pytest.mark.parametrize(
    ("said", "earned"),
    [("42", 1.2), ("17 + 25 = 42.", 1.2), ("42, not 43", 0.2), ("-42", 0.2), ("", 0.2)],
)
def test_the_last_number_counts(said: str, earned: float) -> None:
    assert reward(said) == earned


def test_an_answer_that_was_cut_off_earns_less() -> None:
    assert reward("It is 42" + " " * 20) == 1.0


def test_held_out_questions_are_never_trained_on() -> None:
    arena = Sums(None, hardest="product2")
    trained = {task.id for task in islice(arena.tasks(random.Random(1)), 5000)}
    held_out = {task.id for task in islice(arena.held_out(random.Random(2)), 500)}
    assert not trained & held_out
    assert {task.level for task in islice(arena.tasks(random.Random(3)), 200)} == set(LEVELS)


def test_a_level_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="hardest is 'sum3'; expected one of: sum1, sum2, "):
        Sums(None, hardest="sum3")
