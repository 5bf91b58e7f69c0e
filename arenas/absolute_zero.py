"""Absolute zero: a proposer invents problems about small programs, and a solver solves them."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arenas.pipelines import random_program
from arenas.problems import (
    KINDS,
    LANGUAGE,
    Problem,
    accepted,
    is_right,
    lists_in,
    parse_problem,
    question,
    random_problem,
    solution,
)
from arenas.proposers import share_solved
from legos import Arena, Table, Task

__all__ = ["KINDS", "AbsoluteZero", "Problem", "Solve", "accepted", "is_right", "parse_problem"]

MALFORMED, REJECTED = -1.0, -0.5  # rewards of a proposal that is none, or does not pass the gate
KEPT = 1000  # problems in the store


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
                examples = tuple(random_problem(kind, 2, rng) for _ in range(2))
                yield Task(id=f"{kind}/{rng.getrandbits(40):010x}", data=(kind, examples))

    def held_out(self, rng: random.Random) -> Iterable[Task]:
        """The same 60 problems for the solver in every evaluation, a quarter of each length."""
        rng = random.Random(0)  # not the arena's seed: every run is measured on the same problems
        for number in range(60):
            problem = random_problem(self.kinds[number % len(self.kinds)], 1 + number % 4, rng)
            yield Task(id=f"held out/{number}", data=problem)

    def example(self, role: str, prompt: str, rng: random.Random) -> str:
        """A random proposal, or a short list as the answer."""
        if "Write a new program" not in prompt:
            return f"[{rng.randint(1, 20)}]"
        return f"PROGRAM: {random_program(rng, 2)} INPUT: {rng.sample(range(20), 4)}"

    def oracle(self, role: str, prompt: str, task: Task, rng: random.Random) -> tuple[str, float]:
        """The solution of a held-out problem; else a program that adds, and its solution."""
        if isinstance(task.data, Problem):
            return solution(task.data), 1.0
        if "Write a new program" in prompt:  # it earns nothing, because all will solve it
            return f"PROGRAM: add {rng.randint(1, 99)} INPUT: {rng.sample(range(20), 4)}", 0.0
        lists = lists_in(prompt)
        if "Which program" in prompt:
            return f"PROGRAM: add {lists[1][0] - lists[0][0]}", 1.0
        added = int(re.findall(r"PROGRAM: add (\d+)", prompt)[0])
        added *= 1 if "What is the output" in prompt else -1
        return str([number + added for number in lists[0]]), 1.0

    def reference(self) -> Mapping[str, float]:
        """Rewards of an oracle and of silence, and how often the list of the question is right."""
        known = {"oracle_solver": 1.0, "best_proposer": 1.0, "idle_solver": 0.0}
        return {**known, "echo_solver": 14 / 60} if self.kinds == KINDS else known

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
            t.metric(gate=0.0)
            return {"proposer": MALFORMED, "solver": 0.0}
        problem, reason = accepted(kind, program, given)
        store, name = t.store("problems", limit=KEPT), f"{program} {given}"
        if problem is not None and store.get(name, t.seed) != t.seed:  # of another play
            problem, reason = None, "the problem was proposed before"
        t.metric(gate=float(problem is not None))
        if problem is None:
            t.note(reason)
            return {"proposer": REJECTED, "solver": 0.0}
        store[name] = t.seed
        answers = await t.spawn(Solve, Task(id=name, data=problem), n=self.answers)
        right = share_solved(answers)
        t.metric(solved=right, operations=float(program.count("|") + 1))
        return {"proposer": 4 * right * (1 - right), "solver": right}


async def _solved(t: Table) -> float:
    """Ask the solver about the task's problem; 1 for a right answer, otherwise 0."""
    problem = Problem(*t.task.data)
    said = (await t.ask("solver", question(problem))).answer
    return float(is_right(said, problem))
