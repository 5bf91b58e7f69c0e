"""Taboo: who says the word, who guesses it, and what that earns."""

import random

import pytest
from scripted_play import played

from arenas.taboo import HELD_OUT, WORDS, Taboo
from legos import Task
from legos.fakes import Asked, ScriptedClient

APPLE = Task(id="apple", data="apple")


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
        (("A red fruit.", "Apple"), 1.0),
        (("A red fruit.", "A cherry? No, an apple!"), 1.0),
        (("A red fruit.", "An apple or a cherry"), 0.0),
        (("A red fruit.", "pineapple"), 0.0),
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
        (("Which fruit did Newton see?", "A famous one.", "It is apple."), -1.0),
        (("Which fruit did Newton see?", "A famous one.", "cherry"), 0.0),
    ],
)
def test_opposed_rewards(said: tuple[str, ...], describer: float) -> None:
    assert rewards(*said, opposed=True) == (describer, -describer)


def test_a_plural_is_the_word_and_a_longer_word_is_not() -> None:
    def leaks(word: str, said: str) -> bool:
        episode, _ = played(Taboo(), Task(id=word, data=word), lambda _: said)
        return episode.metrics["leaked"] == 1.0

    assert leaks("strawberry", "STRAWBERRIES are red")
    assert leaks("box", "two boxes")
    assert not leaks("ear", "this year I hear and earn")
    assert not leaks("ant", "an important elephant")


def test_held_out_words_are_never_trained_on() -> None:
    arena = Taboo()
    trained = {task.id for task in arena.tasks(random.Random(0))}
    held_out = {task.id for task in arena.held_out(random.Random(0))}
    assert not trained & held_out
    assert trained | held_out == set(WORDS)
    assert len(held_out) == pytest.approx(HELD_OUT * len(WORDS), rel=0.3)
    assert len(set(WORDS)) == len(WORDS)


def test_the_base_model_may_take_a_seat() -> None:
    seats = Taboo(ScriptedClient([]), base="guesser").seats(APPLE)
    assert (seats["guesser"].adapter, seats["guesser"].trainable) == ("base", False)
    assert seats["describer"].trainable
    with pytest.raises(ValueError, match="base is 'judge'; expected one of describer, guesser"):
        Taboo(base="judge")
