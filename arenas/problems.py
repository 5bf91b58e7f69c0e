"""Problems about pipelines of operations, for a proposer and a solver."""

import random
import re
from typing import NamedTuple

from arenas.pipelines import random_program, run

__all__ = [
    "KINDS",
    "LANGUAGE",
    "Problem",
    "accepted",
    "is_right",
    "lists_in",
    "parse_problem",
    "question",
    "random_problem",
    "solution",
]

KINDS = ("deduction", "abduction", "induction")
LANGUAGE = (
    "A program changes a list of numbers, operation after operation: "
    "add N, mul N, mod N, if even add N, keep even, keep above N, take N, drop N, repeat N add N, "
    "sort, reverse, unique, sum, max, min, len. N is 1 to 99."
)
_LIST = re.compile(r"\[\s*(?:-?\d+(?:\s*,\s*-?\d+)*)?\s*\]")
_PROGRAM = re.compile(r"PROGRAM:[\s`*]*(.+?)[\s`*.]*(?:INPUT:|$)", re.MULTILINE)


class Problem(NamedTuple):
    """A program, an input and what it makes of the input; the solver sees two of the three."""

    kind: str
    program: str
    given: tuple[int, ...]
    result: tuple[int, ...]


def question(problem: Problem) -> str:
    """What the solver is asked."""
    given, result = list(problem.given), list(problem.result)
    if problem.kind == "deduction":
        asked = f"PROGRAM: {problem.program} INPUT: {given} What is the output list?"
    elif problem.kind == "abduction":
        asked = f"PROGRAM: {problem.program} What input list gives {result}?"
    else:
        pairs = ", ".join(f"{list(x)} gives {list(y)}" for x, y in _examples(problem)[:2])
        asked = f"{pairs}. Which program does this? Write PROGRAM: and its operations."
    return f"{LANGUAGE}\n{asked}"


def solution(problem: Problem) -> str:
    """A right answer to a problem."""
    if problem.kind == "induction":
        return f"PROGRAM: {problem.program}"
    return str(list(problem.result if problem.kind == "deduction" else problem.given))


def is_right(said: str, problem: Problem) -> bool:
    """Whether an answer solves a problem; the last list or program in it counts."""
    try:
        if problem.kind == "induction":
            program = _programs(said)[-1]
            return all(run(program, x) == list(y) for x, y in _examples(problem))
        found = lists_in(said)[-1]
        made = run(problem.program, found) if problem.kind == "abduction" else list(found)
    except (ValueError, IndexError):
        return False
    return made == list(problem.result)


def parse_problem(said: str) -> tuple[str, tuple[int, ...]]:
    """The program and the input of a proposal; ValueError if one of them is missing."""
    programs, given = _programs(said), lists_in(said)
    if not programs or not given:
        raise ValueError("no proposal; expected PROGRAM: and INPUT: with a list of numbers")
    return " | ".join(" ".join(p.split()) for p in programs[0].split("|")), given[0]


def _programs(said: str) -> list[str]:
    """The programs in a text, each one line, or several that ``|`` joins."""
    return _PROGRAM.findall(re.sub(r"\s*\|\s*", " | ", said))


def accepted(kind: str, program: str, given: tuple[int, ...]) -> tuple[Problem | None, str]:
    """The gate: the problem, or None and why it does not pass."""
    try:
        result = tuple(run(program, given))
        problem = Problem(kind, program, given, result)
        others = {y for x, y in _examples(problem) if x != given}
    except ValueError as error:
        return None, str(error)
    if others <= {result}:
        return None, "the output does not depend on the input"
    return problem, ""


def _examples(problem: Problem) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The input and four others, with their outputs."""
    given = problem.given
    larger, doubled = tuple(x + 1 for x in given), tuple(2 * x for x in given)
    inputs = [given, larger, given[::-1], (*given, 7), doubled]
    return [(x, tuple(run(problem.program, x))) for x in inputs]


def random_problem(kind: str, operations: int, rng: random.Random) -> Problem:
    """A random problem that passes the gate."""
    while True:
        given = tuple(rng.randint(1, 20) for _ in range(rng.randint(3, 5)))
        problem, _ = accepted(kind, random_program(rng, operations), given)
        if problem is not None:
            return problem


def lists_in(text: str) -> list[tuple[int, ...]]:
    """The lists of numbers in a text, in order."""
    return [tuple(map(int, re.findall(r"-?\d+", found))) for found in _LIST.findall(text)]
