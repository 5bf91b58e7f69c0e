"""Duel: verdicts, planted comparisons and questions from a file."""

import json
import random
from pathlib import Path

import pytest
from scripted_play import played

from arenas.duel import Duel
from legos import Episode, Task
from legos.fakes import Asked, ScriptedClient

LONG, SHORT = "a much longer answer", "short"


def shown_first(asked: Asked) -> str | None:
    """The answer that a judge is shown first; None: it is no question to the judge."""
    first = asked.prompt.partition("Answer A:\n")[2].partition("\n")[0]
    return first or None


def duels(judge: str, *, number: int = 30) -> list[Episode]:
    """Duels of a long and a short answer, with a judge of one habit; none are planted."""

    def answer(asked: Asked) -> str:
        first = shown_first(asked)
        if first is None:
            return SHORT if asked.sampling.seed % 2 else LONG
        return "[A]" if judge in ("first", first) else "[B]"

    question = Task(id="q", data="Why?")
    episodes = [played(Duel(), question, answer, seed=seed)[0] for seed in range(number)]
    differing = [
        e for e in episodes if len(set(texts(e))) == 2 and "planted_right" not in e.metrics
    ]
    assert differing, "the answers never differ"
    return differing


def texts(episode: Episode) -> list[str]:
    return [r.turns[0].completion.text for r in episode.rollouts if r.role != "judge"]


@pytest.mark.parametrize("favourite", [LONG, SHORT])
def test_the_judge_decides(favourite: str) -> None:
    for episode in duels(favourite):
        won = 1.0 if texts(episode)[0] == favourite else -1.0
        assert episode.rewards == {"first": won, "second": -won, "judge": 0.0}
        assert episode.metrics["longer_wins"] == float(favourite == LONG)


def test_a_judge_that_favours_a_place_decides_nothing() -> None:
    for episode in duels("first"):
        assert set(episode.rewards.values()) == {0.0}
        assert episode.metrics["longer_wins"] == 0.5


def test_the_judge_is_the_model_without_lora() -> None:
    seats = Duel(ScriptedClient([])).seats(Task(id="q", data="Why?"))
    assert (seats["judge"].adapter, seats["judge"].policy) == ("base", None)
    assert seats["first"].policy == seats["second"].policy == "policy"


@pytest.mark.parametrize("judge", ["good", "blind"])
def test_planted_answers_measure_the_judge(judge: str) -> None:
    good = "one two three four five six"

    def answer(asked: Asked) -> str:
        first = shown_first(asked)
        return good if first is None else "[A]" if first == good or judge == "blind" else "[B]"

    question = Task(id="q", data="Why?")
    metrics = [played(Duel(), question, answer, seed=seed)[0].metrics for seed in range(60)]
    planted = [found["planted_right"] for found in metrics if "planted_right" in found]
    assert 1 <= len(planted) <= 20
    assert set(planted) == {float(judge == "good")}


def test_questions_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"Why {n}?"}) + "\n" for n in range(60)))
    arena = Duel(data=str(file))
    trained = {task.data for task in arena.tasks(random.Random(0))}
    held_out = {task.data for task in arena.held_out(random.Random(0)) or ()}
    assert len(trained) + len(held_out) == 60
    assert held_out
    assert trained.isdisjoint(held_out)
    orders = {tuple(task.id for task in arena.held_out(random.Random(n)) or ()) for n in range(9)}
    assert len(orders) > 1
    assert Duel().held_out(random.Random(0)) is None
    assert len(list(Duel().tasks(random.Random(0)))) == 10
