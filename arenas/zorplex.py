"""Zorplex: look up hidden numbers with tools, and compute with them."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

from arenas.expressions import value_of
from legos import Arena, Episode, Table, Task

__all__ = ["KINDS", "LEVELS", "Puzzle", "Zorplex"]

KINDS = ("simple", "compositional", "multi_step", "recursive")
LEVELS = ("easy", "medium", "hard")
WORDS = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "frost",
    "grove",
    "heron",
    "ivory",
    "jade",
    "karma",
    "lotus",
    "maple",
    "nylon",
    "olive",
    "pearl",
    "quartz",
    "raven",
    "slate",
    "topaz",
    "umber",
    "velvet",
    "willow",
    "xenon",
    "yarrow",
    "zinc",
)
SPAM = 2  # calls beyond what the task needs from which on a play counts as tool_spam
_CALL = re.compile(r"\b(LOOKUP|GETKEY|FETCH|COMPUTE)\[([^\[\]]*)\]")
_ANSWER = re.compile(r"\[ANSWER\]\s*(-?\d+)")
_RULES = {
    "simple": "LOOKUP[word] tells a word's number.",
    "compositional": "LOOKUP[word] tells a word's number. COMPUTE[2 + 3] tells a value.",
    "multi_step": "GETKEY[word] tells a word's key. FETCH[key] tells the number of a key.",
    "recursive": "LOOKUP[word] tells a word's number, or another word to look up instead.",
}


class Puzzle(NamedTuple):
    """A question and the answers of its tools."""

    kind: str
    question: str
    results: Mapping[str, str]  # call -> result
    answer: int
    needed: int  # number of calls that are enough


class Zorplex(Arena):
    """Find a number with tools, and write ``[ANSWER] number``.

    The model calls a tool by writing it, such as ``LOOKUP[amber]``, and reads the result in the
    next prompt. Every task has a table of its own, so a table cannot be learnt by heart.

        simple         the number of a word
        compositional  two words with + (easy) or - (medium), three with + and * (hard)
        multi_step     GETKEY, then FETCH
        recursive      LOOKUP that names 1 (easy) to 3 (hard) other words first

    Rewards: 1 for the right number after the tag, 0.2 for the tag, -0.1 for each call beyond what
    the task needs. Each play counts as one of ``tool_spam`` (more than 2 such calls, whatever
    else), ``wrong_format`` (no tag), ``success`` or ``wrong_answer``. Credit compares the plays of
    one table. The curriculum begins with easy tables, and plays harder ones as ``success`` rises.
    The number that shows learning is ``success`` on new tables: guessing gives 0.01.
    """

    reward_weights: Mapping[str, float] = {"correct": 1.0, "format": 0.2, "extra_calls": -0.1}
    max_tokens = 128

    def __init__(
        self,
        client: Any = None,
        *,
        kinds: Sequence[str] = KINDS,
        levels: Sequence[str] = LEVELS,
        turns: int = 6,
        **kwargs: Any,
    ) -> None:
        """Choose the kinds of tasks, their levels, and the maximum number of replies of a play.

        Raises:
            ValueError: an unknown kind or level, or no reply.
        """
        super().__init__(client, **kwargs)
        if not kinds or not set(kinds) <= set(KINDS):
            raise ValueError(f"kinds are {list(kinds)}; expected some of {', '.join(KINDS)}")
        if not levels or not set(levels) <= set(LEVELS):
            raise ValueError(f"levels are {list(levels)}; expected some of {', '.join(LEVELS)}")
        if turns < 1:
            raise ValueError(f"turns is {turns}; expected at least 1 reply")
        self.kinds, self.levels, self.turns = tuple(kinds), tuple(levels), turns

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Puzzles with fresh tables, the levels and kinds in turn."""
        while True:
            for level, kind in product(self.levels, self.kinds):
                name = f"{kind}/{level}/{rng.getrandbits(40):010x}"
                yield Task(id=name, data=_puzzle(kind, LEVELS.index(level), rng), level=level)

    def success(self, episode: Episode) -> float:
        """Whether the play counts as a success."""
        return episode.metrics.get("success", 0.0)

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """A call at the first prompt, and an answer afterwards."""
        if "Write the calls" not in prompt:
            return f"[ANSWER] {rng.randint(1, 100)}"
        return f"I try {rng.choice(('LOOKUP', 'GETKEY'))}[{rng.choice(WORDS)}] and COMPUTE[2 + 3]"

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """Ask until there is an answer; calls are answered in the next prompt."""
        puzzle: Puzzle = t.task.data
        prompt = (
            f"{_RULES[puzzle.kind]} Write the calls you need and wait for their results.\n"
            f"{puzzle.question} When you know it, write [ANSWER] and the number."
        )
        calls, answer = 0, None
        for _ in range(self.turns):
            said = (await t.ask("player", prompt)).answer
            if answer := _ANSWER.search(said):
                break
            asked = _CALL.findall(said)
            calls += len(asked)
            results = [f"{name}[{of}] = {_result(puzzle, name, of)}" for name, of in asked]
            prompt = "\n".join(results) or "There is neither a call nor an [ANSWER] in this."
        right = answer is not None and int(answer[1]) == puzzle.answer
        extra = max(calls - puzzle.needed, 0)
        mode = (
            "tool_spam"
            if extra > SPAM
            else "wrong_format"
            if answer is None
            else "success"
            if right
            else "wrong_answer"
        )
        t.metric(**{mode: 1.0}, calls=calls)
        parts = {"correct": float(right), "format": float(answer is not None)}
        return {"player": {**parts, "extra_calls": float(extra)}}


def _result(puzzle: Puzzle, name: str, of: str) -> str:
    """What a call returns; mistakes get an explanation."""
    if name != "COMPUTE":
        return puzzle.results.get(f"{name}[{of.strip()}]", "unknown")
    try:
        return str(value_of(of)[0])
    except ValueError as error:
        return f"error: {error}"


def _puzzle(kind: str, level: int, rng: random.Random) -> Puzzle:
    """A puzzle with a table of its own."""
    words = rng.sample(WORDS, len(WORDS))
    numbers = {word: rng.randint(1, 100) for word in words}
    first, second, third, fourth = words[:4]
    results = {f"LOOKUP[{word}]": str(number) for word, number in numbers.items()}
    question, answer, needed = f"What is the number of {first}?", numbers[first], 1
    if kind == "compositional":
        one, other = numbers[first], numbers[second]
        text, answer, needed = (
            (f"{first} + {second}", one + other, 3),
            (f"{first} - {second}", one - other, 3),
            (f"{first} + {second} * {third}", one + other * numbers[third], 4),
        )[level]
        question = f"What is {text}?"
    elif kind == "multi_step":
        keys = {word: f"ZK_{rng.getrandbits(24):06x}" for word in words}
        results = {f"GETKEY[{word}]": key for word, key in keys.items()}
        results |= {f"FETCH[{key}]": str(numbers[word]) for word, key in keys.items()}
        needed = 2
    elif kind == "recursive":
        path = (first, second, third, fourth)[: level + 2]
        for word, following in pairwise(path):
            results[f"LOOKUP[{word}]"] = f"SEE: {following}"
        answer, needed = numbers[path[-1]], len(path)
    return Puzzle(kind, question, results, answer, needed)
