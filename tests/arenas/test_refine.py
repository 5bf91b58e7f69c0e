"""Refine: its rules, and who reads what."""

import random
from itertools import islice

import pytest
from scripted_play import played

from arenas.refine import Refine, Rules, score_of
from legos import Task

RULES = Rules("bread", 4, 8, ("salt", "cold"), "e")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Cold salt on my warm loaf", 1.0),
        ("Cold salt on my warm bread", 0.75),
        ("Salty cold loaf is good", 0.75),
        ("salt cold", 0.75),
        ("eee", 0.0),
        ("", 0.0),
    ],
)
def test_scores(text: str, score: float) -> None:
    assert score_of(text, RULES) == score


def test_the_writer_reads_the_comment_and_both_share_the_reward() -> None:
    said = iter(["bread", "Use the words.", "Cold salt on my warm loaf"])
    episode, prompts = played(Refine(), Task(id="x", data=RULES), lambda _: next(said))
    assert "A draft:\nbread\n" in prompts[1]
    assert "A comment:\nUse the words.\n" in prompts[2]
    assert episode.rewards == {"writer": 1.0, "critic": 1.0}
    assert episode.metrics == {"first": 0.0, "gain": 1.0, "solved": 1.0}


def test_without_a_critic_the_comment_is_always_the_same() -> None:
    said = iter(["bread", "bread", "bread"])
    arena = Refine(rounds=2, critic=False)
    episode, prompts = played(arena, Task(id="x", data=RULES), lambda _: next(said))
    assert [r.role for r in episode.rollouts if r.turns] == ["writer"]
    assert all("A comment:\nImprove it.\n" in prompt for prompt in prompts[1:])


def test_the_rules_can_be_followed() -> None:
    for task in islice(Refine().tasks(random.Random(2)), 200):
        rules: Rules = task.data
        filler = next(word for word in ("my", "its", "on", "we") if rules.banned not in word)
        words = [*rules.words, *[filler] * (rules.fewest - 2)]
        assert score_of(" ".join(words), rules) == 1.0


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="at least 1 comment"):
        Refine(rounds=0)
