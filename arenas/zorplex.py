"""Zorplex: look up hidden numbers with tools, and compute with them."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from arenas.expressions import value_of
from arenas.lookups import KINDS, LEVELS, RULES, WORDS, Puzzle, make_puzzle
from legos import Arena, Episode, Table, Task

__all__ = ["KINDS", "LEVELS", "Puzzle", "Zorplex"]

MODES = ("tool_spam", "wrong_format", "success", "wrong_answer")
SPAM = 2  # calls beyond what the task needs from which on a play counts as tool_spam
_CALL = re.compile(r"\b(LOOKUP|GETKEY|FETCH|COMPUTE)\[([^\[\]]*)\]")
_MINUS = "\u2212"
_NUMBER = r"-?\d{1,18}(?:,\d{3})*(?:\.\d{1,18})?"  # also 2,550
_ANSWER = re.compile(rf"\[ANSWER\][\s:=*]*({_NUMBER})(?!\d)")


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
                yield Task(id=name, data=make_puzzle(kind, LEVELS.index(level), rng), level=level)

    def success(self, episode: Episode) -> float:
        """Whether the play counts as a success."""
        return episode.metrics.get("success", 0.0)

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """A call at the first prompt, and an answer afterwards."""
        if "Write the calls" not in prompt:
            return f"[ANSWER] {rng.randint(1, 100)}"
        return f"I try {rng.choice(('LOOKUP', 'GETKEY'))}[{rng.choice(WORDS)}] and COMPUTE[2 + 3]"

    def oracle(self, role: str, prompt: str, task: Task, rng: random.Random) -> tuple[str, float]:
        """Looks up the words of the question and what the results refer to; then the answer."""
        puzzle: Puzzle = task.data
        if "Write the calls" in prompt:
            name = "GETKEY" if puzzle.kind == "multi_step" else "LOOKUP"
            asked = [word for word in re.findall(r"\w+", puzzle.question) if word in WORDS]
            return " ".join(f"{name}[{word}]" for word in asked), 1.2
        if further := re.search(r"= (?:SEE: )?(ZK_\w+|[a-z]+)$", prompt):
            name = "FETCH" if further[1].startswith("ZK_") else "LOOKUP"
            return f"{name}[{further[1]}]", 1.2
        return f"[ANSWER] {puzzle.answer}", 1.2

    def reference(self) -> Mapping[str, float]:
        """Rewards of an oracle and of silence, and how often a number from 1 to 100 is right."""
        known = {"oracle": 1.2, "idle": 0.0}
        if (self.kinds, self.levels) == (KINDS, LEVELS):
            known["guess_success"] = 0.0083428
        return known

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """Ask until there is an answer; calls are answered in the next prompt."""
        puzzle: Puzzle = t.task.data
        prompt = (
            f"{RULES[puzzle.kind]} Write the calls you need and wait for their results.\n"
            f"{puzzle.question} When you know it, write [ANSWER] and the number."
        )
        calls, answer = 0, None
        for _ in range(self.turns):
            said = (await t.ask("player", prompt)).answer
            asked = _CALL.findall(said)
            calls += len(asked)
            if answer := _ANSWER.search(said.replace(_MINUS, "-")):
                break
            results = [f"{name}[{of}] = {_result(puzzle, name, of)}" for name, of in asked]
            prompt = (
                "\n".join(results) or "There is neither a call nor a number after [ANSWER] in this."
            )
        right = answer is not None and answer[1].replace(",", "") == str(puzzle.answer)
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
        t.metric(**{each: float(each == mode) for each in MODES}, calls=calls)
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
