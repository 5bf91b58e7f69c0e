"""Absolute zero: a proposer invents problems about small programs, and a solver solves them."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from arenas.pipelines import random_program, run
from legos import Arena, Table, Task

__all__ = ["KINDS", "AbsoluteZero", "Problem", "Solve", "accepted", "is_right", "parse_problem"]

KINDS = ("deduction", "abduction", "induction")
LANGUAGE = (
    "A program changes a list of numbers, operation after operation: "
    "add N, mul N, mod N, if even add N, keep even, keep above N, take N, drop N, repeat N add N, "
    "sort, reverse, unique, sum, max, min, len. N is 1 to 99."
)
MALFORMED, REJECTED = -1.0, -0.5  # rewards of a proposal that is none, or does not pass the gate
KEPT = 1000  # problems in the store
_LIST = re.compile(r"\[\s*(?:-?\d+(?:\s*,\s*-?\d+)*)?\s*\]")
_PROGRAM = re.compile(r"PROGRAM:\s*(.+?)\s*(?:INPUT:|$)", re.DOTALL)


class Problem(NamedTuple):
    """A program, an input and what it makes of the input; the solver sees two of the three."""

    kind: str
    program: str
    given: tuple[int, ...]
    result: tuple[int, ...]


class Solve(Arena):
    """Find an output (deduction), an input (abduction) or a program (induction).

    A list is written as ``[1, 2]``, and a program after ``PROGRAM:``. Any input with the same
    output and any program with the same outputs is right. Reward: 1 or 0.
    """

    roles = ("solver",)
    max_tokens = 128

    async def play(self, t: Table) -> Mapping[str, float]:
        """One answer."""
        return {"solver": await _solved(t)}


class AbsoluteZero(Arena):
    """The proposer writes a program and an input; the solver gets the problem eight times.

    The language is small and total (``arenas/pipelines.py``): a program that a model wrote can be
    run safely, and gives the true answer. A proposal is written ``PROGRAM: ... INPUT: [1, 2]``.
    The gate lets only problems through whose program runs, uses its input and is new.

    Rewards: the proposer gets 4 p (1 - p) for the share p of right answers, so nothing where all or
    none are right; -1 for what is no proposal and -0.5 for what does not pass the gate. A solver
    gets 1 or 0. Credit ``hierarchical`` compares the proposals of one task with each other, and
    the answers to one problem with each other. The number that shows learning is the solver's
    reward on held-out problems, which are random programs of 1 to 4 operations.
    """

    roles = ("proposer", "solver")
    max_tokens = 128
    recommended: Mapping[str, object] = {"play.credit": "hierarchical"}

    def __init__(
        self, client: Any = None, *, kinds: Sequence[str] = KINDS, answers: int = 8, **kwargs: Any
    ) -> None:
        """Choose the kinds of problems, and the number of answers to each."""
        if not kinds or not set(kinds) <= set(KINDS):
            raise ValueError(f"kinds are {list(kinds)}; expected some of {', '.join(KINDS)}")
        if answers < 2:
            raise ValueError(f"answers is {answers}; expected at least 2 to compare")
        super().__init__(client, **kwargs)
        self.kinds, self.answers = tuple(kinds), answers

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The kinds in turn, each with two example programs."""
        while True:
            for kind in self.kinds:
                examples = tuple(_random_problem(kind, 2, rng) for _ in range(2))
                yield Task(id=f"{kind}/{rng.getrandbits(40):010x}", data=(kind, examples))

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The same 60 problems for the solver in every evaluation, a quarter of each length."""
        rng = random.Random(0)  # not the arena's seed: every run is measured on the same problems
        for number in range(60):
            problem = _random_problem(self.kinds[number % len(self.kinds)], 1 + number % 4, rng)
            yield Task(id=f"held out/{number}", data=problem)

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """A random proposal, or a short list as the answer."""
        if "Write a new program" not in prompt:
            return f"[{rng.randint(1, 20)}]"
        return f"PROGRAM: {random_program(rng, 2)} INPUT: {rng.sample(range(20), 4)}"

    async def play(self, t: Table) -> Mapping[str, float]:
        """A proposal, and the solver's answers to it."""
        if isinstance(t.task.data, Problem):
            return {"proposer": 0.0, "solver": await _solved(t)}
        kind, examples = t.task.data
        shown = "\n".join(f"PROGRAM: {p.program} INPUT: {list(p.given)}" for p in examples)
        prompt = f"{LANGUAGE}\nWrite a new program and an input, neither easy nor hard:\n{shown}"
        try:
            program, given = parse_problem((await t.ask("proposer", prompt)).answer)
        except ValueError as error:
            t.note(str(error))
            return {"proposer": MALFORMED, "solver": 0.0}
        problem, reason = accepted(kind, program, given)
        store, name = t.store("problems", limit=KEPT), f"{program} {given}"
        if problem is not None and name in store:
            problem, reason = None, "the problem was proposed before"
        t.metric(gate=float(problem is not None))
        if problem is None:
            t.note(reason)
            return {"proposer": REJECTED, "solver": 0.0}
        store[name] = kind
        answers = await t.spawn(Solve, Task(id=name, data=problem), n=self.answers)
        right = fmean(episode.rewards.get("solver", 0.0) for episode in answers)
        t.metric(solved=right, operations=float(program.count("|") + 1))
        return {"proposer": 4 * right * (1 - right), "solver": right}


async def _solved(t: Table) -> float:
    """Ask the solver about the task's problem; 1 for a right answer, otherwise 0."""
    problem = Problem(*t.task.data)
    said = (await t.ask("solver", question(problem))).answer
    return float(is_right(said, problem))


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


def is_right(said: str, problem: Problem) -> bool:
    """Whether an answer solves a problem; the last list or program in it counts."""
    try:
        if problem.kind == "induction":
            program = _PROGRAM.findall(said)[-1]
            return all(run(program, x) == list(y) for x, y in _examples(problem))
        found = _numbers(_LIST.findall(said)[-1])
        made = run(problem.program, found) if problem.kind == "abduction" else list(found)
    except (ValueError, IndexError):
        return False
    return made == list(problem.result)


def parse_problem(said: str) -> tuple[str, tuple[int, ...]]:
    """The program and the input of a proposal; ValueError if one of them is missing."""
    program, given = _PROGRAM.search(said), _LIST.search(said)
    if program is None or given is None:
        raise ValueError("no proposal; expected PROGRAM: and INPUT: with a list of numbers")
    return " | ".join(" ".join(p.split()) for p in program[1].split("|")), _numbers(given[0])


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


def _random_problem(kind: str, operations: int, rng: random.Random) -> Problem:
    """A random problem that passes the gate."""
    while True:
        given = tuple(rng.randint(1, 20) for _ in range(rng.randint(3, 5)))
        problem, _ = accepted(kind, random_program(rng, operations), given)
        if problem is not None:
            return problem


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d+", text))
