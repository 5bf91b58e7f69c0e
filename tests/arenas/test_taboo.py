"""Taboo: who says the word, who guesses it, and what that earns."""

import random
from collections.abc import Callable

import pytest
from scripted_play import played

from arenas.taboo import HELD_OUT, WORDS, Taboo
from legos import Task
from legos.fakes import Asked, ScriptedClient

LISTED = ("apple", "cherry", "pen", "owl")
APPLE = Task(id="apple", data=("apple", LISTED))


def rewards(*said: str, opposed: bool = False) -> tuple[float, float]:
    """What describer and guesser earn when they say these texts in turn."""
    script = iter(said)

    def answer(_: Asked) -> str:
        return next(script)

    episode, _ = played(Taboo(opposed=opposed), APPLE, answer)
    assert next(script, None) is None, "not all was said"
    return episode.rewards["describer"], episode.rewards["guesser"]


@pytest.mark.parametrize(
    ("said", "earned"),
    [
        (("A red fruit.", "apple"), 1.0),
        (("A red fruit.", "cherry"), 0.0),
        (("Apples are red.",), 0.0),
        (("It is no pineapple, but red.", "apple"), 1.0),
    ],
)
def test_shared_rewards(said: tuple[str, ...], earned: float) -> None:
    assert rewards(*said) == (earned, earned)


@pytest.mark.parametrize(
    ("said", "describer"),
    [
        (("Do you like an apple?",), -1.0),
        (("Which fruit did Newton see?", "He saw an apple."), 1.0),
        (("Which fruit did Newton see?", "A famous one.", "apple"), -1.0),
        (("Which fruit did Newton see?", "A famous one.", "cherry"), 0.0),
    ],
)
def test_opposed_rewards(said: tuple[str, ...], describer: float) -> None:
    assert rewards(*said, opposed=True) == (describer, -describer)


def test_a_plural_is_the_word_and_a_longer_word_is_not() -> None:
    def answer(said: str) -> Callable[[Asked], str]:
        return lambda asked: "pen" if asked.sampling.choices else said

    def leaks(word: str, said: str) -> bool:
        episode, _ = played(Taboo(), Task(id=word, data=(word, LISTED)), answer(said))
        return episode.metrics["leaked"] == 1.0

    assert leaks("strawberry", "STRAWBERRIES are red")
    assert leaks("box", "two boxes")
    assert leaks("child", "Two children play.")
    assert leaks("mouse", "Mice eat cheese.")
    assert leaks("apple", "It is an _apple_.")
    assert leaks("pen", "A thing to write with, p-e-n, of plastic.")
    assert leaks("pen", "Spell P E N.")
    assert leaks("apple", "It is an ap-ple.")
    assert leaks("apple", "It is an a**pp**le.")
    assert not leaks("ear", "this year I hear and earn")
    assert not leaks("ant", "an important elephant")
    assert not leaks("bean", "it may be an animal")


def test_held_out_words_are_never_trained_on() -> None:
    arena = Taboo()
    tasks, others = list(arena.tasks(random.Random(0))), list(arena.held_out(random.Random(0)))
    trained, held_out = ({task.data[0] for task in side} for side in (tasks, others))
    assert all(len({*task.data[1]}) == 8 and task.data[0] in task.data[1] for task in tasks)
    assert not trained & held_out
    assert not any(held_out & {*task.data[1]} for task in tasks)
    longest = next(iter(Taboo(listed=32).held_out(random.Random(0))))
    assert len({*longest.data[1]}) == 32
    assert trained | held_out == set(WORDS)
    assert len(held_out) == pytest.approx(HELD_OUT * len(WORDS), rel=0.3)
    assert len(set(WORDS)) == len(WORDS)


def test_the_base_model_may_take_a_seat() -> None:
    seats = Taboo(ScriptedClient([]), base="guesser").seats(APPLE)
    assert (seats["guesser"].adapter, seats["guesser"].trainable) == ("base", False)
    assert seats["describer"].trainable
    with pytest.raises(ValueError, match="base is 'judge'; expected one of describer, guesser"):
        Taboo(base="judge")
    with pytest.raises(ValueError, match="listed is 1; expected 2 to 32 words"):
        Taboo(listed=1)
