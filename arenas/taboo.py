"""Taboo: a word that one seat knows and may not say, with shared or with opposed rewards."""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from legos import Arena, Seat, Table, Task, hold_out

__all__ = ["Taboo"]

_LISTED = """
apple ant arm army baby bag ball banana band bank barn bath beach bean bear bed bee bell belt
bicycle bird blood boat bone book boot bottle bowl box boy brain bread breakfast bridge brother bus
butter cake camel camera candle car carpet carrot castle cat chair cheese cherry chicken child
circle city clock cloud coat coffee coin corn cow crab crown cup dance daughter desert desk diamond
dinner doctor dog doll door dragon dream dress drum duck ear earth egg elephant engine eye family
farm father feather finger fire fish flag flower fly forest fork fox frog game garden gate ghost
girl glass glove goat gold grandmother grape grass guitar hair hammer hand hat heart honey horse
hospital house ice island jacket judge juice key king kitchen kite knife ladder lake lamp leaf leg
lemon letter library lion lock map market milk mirror money monkey moon morning mother mountain
mouse mouth movie music nail neck needle nest night nose nurse ocean onion orange oven owl paint
paper parrot pen pencil penguin piano picture pig pilot pizza plane planet plate poet pool potato
prison queen rabbit rain rainbow ring river road robot rock roof rope rose sand school scissors sea
shark sheep ship shirt shoe silver sister skin sky snake snow soap soldier song soup spider spoon
star stone storm strawberry street sugar summer sun sword table tail tea teacher telephone tent
tiger tomato tooth towel tower train tree truck uncle university violin volcano wall watch water
whale wheel wind window winter witch wolf wood zebra
"""
WORDS = tuple(_LISTED.split())
IRREGULAR = {
    **{"child": "children", "knife": "knives", "leaf": "leaves", "mouse": "mice"},
    **{"tooth": "teeth", "wolf": "wolves"},
}
HELD_OUT = 0.2
MOST_LISTED = 32


class Taboo(Arena):
    """A describer must not say its word, and a guesser picks it from a list.

    With shared rewards, the describer writes a sentence about its word, and the guesser reads it:
    1 to both for the right word, 0 if it is wrong, or if the describer says its word.

    With ``opposed``, the describer wins by making the guesser say the word. It asks something, the
    guesser answers, and then guesses. Who says the word first has lost: the describer in its
    question, or the guesser in its answer; otherwise a right guess wins, and a wrong one is a draw:
    +1, -1 and 0.

    Credit compares the plays of one word for each role. A fifth of the words is held out, and on
    no list in training, where it would always be wrong. The numbers that show learning are, on
    held-out words, ``reward_describer`` with shared rewards, and with opposed ones the reward of
    each seat against the model without LoRA in the other, ``--play.options.base guesser``; against
    itself its mean reward says nothing.

    Source: Yao et al., Adversarial Language Games for Advanced Natural Language Intelligence,
    arXiv:1911.01622, for the opposed game, whose talk here is one question and one answer.
    """

    roles = ("describer", "guesser")
    restrict_choices = True
    max_tokens = 32

    def __init__(
        self,
        client: Any = None,
        *,
        opposed: bool = False,
        listed: int = 8,
        base: str = "",
        **kwargs: Any,
    ) -> None:
        """Choose the rewards.

        Args:
            client: client of both seats.
            opposed: whether one seat wins what the other loses.
            listed: number of words from which the guesser picks.
            base: a role that the model without LoRA plays; empty: none.
            kwargs: settings of every arena.

        Raises:
            ValueError: there is no such role, or the list would be too short or too long.
        """
        if base and base not in self.roles:
            raise ValueError(f"base is {base!r}; expected one of {', '.join(self.roles)}")
        if not 2 <= listed <= MOST_LISTED:
            raise ValueError(f"listed is {listed}; expected 2 to {MOST_LISTED} words")
        super().__init__(client, **kwargs)
        self.opposed, self.listed, self.base = opposed, listed, base
        self.utility = "zero_sum" if opposed else "identical"
        words = [Task(id=word, data=word) for word in WORDS]
        self._trained, self._held_out = (
            [task.id for task in side] for side in hold_out(words, HELD_OUT)
        )

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The words that are not held out, in random order, each with its list."""
        return self._lists(self._trained, rng)

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The words that are held out."""
        return self._lists(self._held_out, rng)

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The policy in both seats, or the model without LoRA in one."""
        seats = dict(super().seats(task))
        if self.base:
            seats[self.base] = replace(
                seats[self.base], name="base", adapter="base", trainable=False
            )
        return seats

    def private(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Which word it is."""
        return {"describer": [f"'{task.data[0]}'"]}

    def example(self, role: str, prompt: str, rng: random.Random) -> str | None:
        """A sentence that fits every word; none where the guesser picks."""
        if "Which of these" in prompt:
            return None
        return rng.choice(("What does everybody know?", "Everybody knows at least one of them."))

    def oracle(
        self, role: str, prompt: str, task: Task, rng: random.Random
    ) -> tuple[str, float] | None:
        """Any sentence, and the word; none of a describer with opposed rewards, who would lose."""
        if self.opposed and role == "describer":
            return None
        said = self.example(role, prompt, rng)
        return (str(task.data[0]) if said is None else said), 1.0

    def reference(self) -> Mapping[str, float]:
        """Rewards of an oracle, and of a guess at random where both can win."""
        if self.opposed:
            return {"oracle_guesser": 1.0}
        return {"oracle_describer": 1.0, "oracle_guesser": 1.0, "random_guess": 1 / self.listed}

    async def play(self, t: Table) -> Mapping[str, float]:
        """A sentence and a guess; with opposed rewards, an answer to the sentence between them."""
        word, listed = t.task.data
        asked = (
            f"Make somebody say the word '{word}', but do not say it yourself. Write a question."
            if self.opposed
            else f"Describe the word '{word}' in one sentence, but do not say the word itself."
        )
        said = (await t.ask("describer", asked)).answer
        leaked = _says(said, word)
        t.metric(leaked=float(leaked))
        if leaked:
            return self._rewards(-1.0)
        guess = f"Which of these words is meant? {' '.join(listed)}"
        if self.opposed:
            answer = (await t.ask("guesser", f"{said}\nAnswer in one sentence.")).answer
            lured = _says(answer, word)
            t.metric(lured=float(lured))
            if lured:
                return self._rewards(1.0)
        else:
            guess = f"{said}\n{guess}"
        guessed: bool = (await t.ask("guesser", guess, choices=listed)).move == word
        t.metric(guessed=float(guessed))
        return self._rewards(-float(guessed) if self.opposed else float(guessed))

    def _lists(self, words: Sequence[str], rng: random.Random) -> Iterator[Task]:
        """Each of some words among others of them."""
        for word in rng.sample(words, len(words)):
            others = rng.sample([other for other in words if other != word], self.listed - 1)
            listed = rng.sample([word, *others], self.listed)
            yield Task(id=f"{word} of {' '.join(listed)}", data=(word, tuple(listed)))

    def _rewards(self, describer: float) -> Mapping[str, float]:
        """Rewards of both seats, from that of the describer."""
        if self.opposed:
            return {"describer": describer, "guesser": -describer}
        return dict.fromkeys(self.roles, max(describer, 0.0))


def _says(text: str, word: str) -> bool:
    """Whether a text has the word, also with marks in it or letter by letter, or its plural."""
    letters = (r"[\W_]+".join(word), r"(?:[^\w\s]|_)*".join(word))
    forms = [rf"{word}(?:e?s)?", *letters, IRREGULAR.get(word, word)]
    if word.endswith("y"):
        forms.append(f"{word[:-1]}ies")
    said = rf"(?<![^\W_])(?:{'|'.join(forms)})(?![^\W_])"
    return re.search(said, text, re.IGNORECASE) is not None
