"""Duel: two answers to one question, and a judge."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from legos import Arena, Seat, Table, Task, hold_out, read_tasks

__all__ = ["Duel"]

QUESTIONS = (
    "Why is the sky blue?",
    "How does a lock keep strangers out?",
    "Why do we salt icy roads?",
    "What makes bread rise?",
    "Why does a boat of steel float?",
    "How do plants find the light?",
    "Why is it hard to wake from deep sleep?",
    "What keeps the moon from falling down?",
    "Why do onions make us cry?",
    "How can a plane fly upside down?",
)
PLANTED = 0.1  # share of plays whose judge is tested with a good and a spoilt answer


class Duel(Arena):
    """Two seats answer the same question; the model without LoRA judges the answers.

    The judge sees the question and both answers, in both orders; if it contradicts itself, the
    duel is a tie. Rewards: +1 to the winner and -1 to the loser, or 0 (zero-sum). Credit compares
    the plays of one question for each seat. In a tenth of the plays the judge also compares the
    first answer with the same words in random order: ``arena/planted_right`` is the share that it
    gets right. ``arena/longer_wins`` says whether it merely likes long answers: 0.5 is no
    preference.

    Both seats are the policy, so the mean reward stays 0. The number that shows learning is the
    win rate of an adapter against an older one or the base model in the other seat.
    """

    roles = ("first", "second", "judge")
    utility = "zero_sum"
    references: Mapping[str, float] = {
        "idle_first": 0.0,  # two equal answers, to which the judge says nothing
        "idle_second": 0.0,
        "coin_judge_agreement": 0.5,  # of a judge that tosses a coin
        "coin_judge_planted_right": 0.25,
        "coin_judge_longer_wins": 0.5,
    }
    max_tokens = 128

    def __init__(
        self, client: Any = None, *, data: str = "", question: str = "question", **kwargs: Any
    ) -> None:
        """Read the questions.

        Args:
            client: client of all seats.
            data: a .jsonl, .json or .parquet file or a data set of the hub; empty: ten questions.
            question: its field with the question.
            kwargs: settings of every arena.
        """
        super().__init__(client, **kwargs)
        rows = read_tasks(data, fields=(question,)) if data else ()
        listed = [Task(id=row.id, data=row.data[question]) for row in rows] or [
            Task(id=text, data=text) for text in QUESTIONS
        ]
        self._trained, self._held_out = hold_out(listed, 0.1 if data else 0.0)

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The questions, in random order."""
        return rng.sample(self._trained, len(self._trained))

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """A tenth of the questions of a file, in random order."""
        return rng.sample(self._held_out, len(self._held_out)) or None

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The policy answers, and the model without LoRA judges."""
        seats = super().seats(task)
        judge = replace(seats["judge"], name="base", adapter="base", trainable=False)
        return {**seats, "judge": judge}

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """Any answer, and any verdict."""
        if role == "judge":
            return f"My verdict: {rng.choice(('[A]', '[B]', '[tie]'))}"
        return f"Because of its {rng.choice(('shape', 'weight', 'colour'))}, and nothing else."

    async def play(self, t: Table) -> Mapping[str, float]:
        """Two answers at the same time, and a verdict."""
        question = str(t.task.data)
        prompt = f"{question} Answer in at most three sentences."
        replies = await t.ask_all({"first": prompt, "second": prompt})
        one, other = replies["first"].answer.strip(), replies["second"].answer.strip()
        if t.rng.random() < PLANTED:
            words = one.split()
            spoilt = " ".join(t.rng.sample(words, len(words)))
            if spoilt != one:
                planted = await t.judge("judge", question, one, spoilt)
                t.metric(planted_right=float(planted.score == 1.0))
        verdict = await t.judge("judge", question, one, other)
        score = 2.0 * verdict.score - 1.0 if verdict.agreed else 0.0
        longer = (len(one) > len(other)) - (len(one) < len(other))
        t.metric(longer_wins=0.5 + 0.5 * score * longer, tie=float(score == 0.0))
        return {"first": score, "second": -score, "judge": 0.0}
