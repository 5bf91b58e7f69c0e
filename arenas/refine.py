"""Refine: a writer, a critic, and rules that a text has to follow."""

import random
import re
from collections.abc import Iterable, Mapping
from itertools import cycle, islice
from typing import Any, NamedTuple

from legos import Arena, Table, Task

__all__ = ["Refine", "Rules", "score_of"]

SUBJECTS = ("the sea", "a market", "winter", "a long train ride", "an old house", "bread")
WORDS = ("stone", "light", "morning", "window", "salt", "garden", "road", "cold", "blue", "hand")
ADVICE = "Improve it."  # what a critic says that has read nothing


class Rules(NamedTuple):
    """What a text has to follow."""

    subject: str
    fewest: int  # words
    most: int  # words
    words: tuple[str, ...]  # each must occur
    banned: str  # a letter that must not occur

    def __str__(self) -> str:
        """The rules in words."""
        return (
            f"Write {self.fewest} to {self.most} words about {self.subject}. Use the words "
            f"{', '.join(self.words)}, and never the letter {self.banned!r}."
        )


def score_of(text: str, rules: Rules) -> float:
    """Share of the rules that a text follows: its length, each word, and the banned letter."""
    said = re.findall(r"[a-z']+", text.lower())
    kept = [rules.fewest <= len(said) <= rules.most]
    kept += [word in said for word in rules.words]
    kept.append(bool(said) and rules.banned not in text.lower())
    return sum(kept) / len(kept)


class Refine(Arena):
    """The writer drafts a text, the critic comments on it, and the writer writes it again.

    The reply is the text itself. Writer and critic share the reward: the share of rules that the
    last text follows. Credit compares the plays of one task for each role. The numbers that show
    learning are ``arena/gain``, the score of the last text minus that of the first draft, and its
    difference to a run with ``--play.options.critic false``, whose critic always says "Improve
    it.": a critic is of use only if it beats that.
    """

    roles = ("writer", "critic")
    utility = "identical"
    remember = False  # every prompt holds all that its seat needs
    max_tokens = 96

    def __init__(
        self, client: Any = None, *, rounds: int = 1, critic: bool = True, **kwargs: Any
    ) -> None:
        """Set the number of comments, and whether a model makes them.

        Raises:
            ValueError: no comment at all.
        """
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; expected at least 1 comment")
        super().__init__(client, **kwargs)
        self.rounds, self.critic = rounds, critic

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Random rules that can be followed."""
        while True:
            fewest = rng.randint(6, 14)
            words = tuple(rng.sample(WORDS, 2))
            letters = sorted(set("abcdefghiklmnoprstuwy").difference(*words))
            rules = Rules(
                rng.choice(SUBJECTS), fewest, fewest + 4, words, banned=rng.choice(letters)
            )
            yield Task(id=str(rules), data=rules)

    def oracle(self, role: str, prompt: str, task: Task, rng: random.Random) -> tuple[str, float]:
        """The words that must occur, as often as the text has to be long."""
        rules: Rules = task.data
        text = " ".join(islice(cycle(rules.words), rules.fewest))
        return ADVICE if role == "critic" else text, 1.0

    def reference(self) -> Mapping[str, float]:
        """Rewards of an oracle, of silence, and of copying the task."""
        known = {"oracle_writer": 1.0, "idle_writer": 0.0, "copied_task": 0.578704}
        return {**known, "oracle_critic": 1.0, "idle_critic": 0.0} if self.critic else known

    async def play(self, t: Table) -> Mapping[str, float]:
        """Draft, then comment and rewrite."""
        rules: Rules = t.task.data
        draft = (await t.ask("writer", str(rules))).answer
        first = score_of(draft, rules)
        for _ in range(self.rounds):
            note = ADVICE
            if self.critic:
                question = f"{rules}\nA draft:\n{draft}\nWhat is wrong with it?"
                note = (await t.ask("critic", question)).answer
            prompt = f"{rules}\nYour draft:\n{draft}\nA comment:\n{note}\nWrite it again."
            draft = (await t.ask("writer", prompt)).answer
        reward = score_of(draft, rules)
        t.metric(first=first, gain=reward - first, solved=float(reward == 1.0))
        return {"writer": reward, "critic": reward}
