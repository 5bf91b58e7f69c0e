"""Absolute zero: the gate, the answers to each kind of problem, and both rewards."""

import random
from itertools import islice
from typing import Any

import pytest
from scripted_play import played

from arenas.absolute_zero import AbsoluteZero, Problem, accepted, is_right, parse_problem
from arenas.pipelines import run
from legos.fakes import Asked


def problem(kind: str) -> Problem:
    found, reason = accepted(kind, "add 2 | keep odd", (3, 4, 5))
    assert found is not None, reason
    return found


@pytest.mark.parametrize(
    ("kind", "said", "right"),
    [
        ("deduction", "first [1], so [5, 7]", True),
        ("deduction", "[5, 7, 9]", False),
        ("deduction", "[]", False),
        ("deduction", "five and seven", False),
        ("abduction", "[3, 5]", True),
        ("abduction", "[3, 4, 5]", True),
        ("abduction", "[5, 7]", False),
        ("induction", "PROGRAM: add 2 | keep odd", True),
        ("induction", "PROGRAM: keep odd | add 2", True),
        ("induction", "PROGRAM: add 2 | keep odd.\nEach number grows by 2.", True),
        ("induction", "**PROGRAM:** `add 2 | keep odd`", True),
        ("induction", "PROGRAM:\nadd 2 | keep odd", True),
        ("induction", "PROGRAM: add 2\n| keep odd", True),
        ("induction", "PROGRAM: add 2 | \nkeep odd\nIt adds.", True),
        ("induction", "PROGRAM: drop 1", False),
        ("induction", "PROGRAM: launch 2", False),
        ("induction", "", False),
    ],
)
def test_answers(kind: str, said: str, right: bool) -> None:
    assert is_right(said, problem(kind)) is right


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("add 2", ""),
        ("keep above 90", "does not depend on the input"),
        ("mul 0", "is not a number"),
        ("add 02", "is not a number"),
        ("sum | mod 1", "does not depend on the input"),
    ],
)
def test_the_gate(program: str, reason: str) -> None:
    found, why = accepted("deduction", program, (3, 5))
    assert (found is not None) is (reason == "")
    assert reason in why


def test_proposals_are_read() -> None:
    assert parse_problem("Well.\nPROGRAM:  add  2|sort\nINPUT: [1, -2]") == (
        "add 2 | sort",
        (1, -2),
    )
    with pytest.raises(ValueError, match="no proposal"):
        parse_problem("PROGRAM: add 2")


def play(proposal: str, *, right: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """Rewards and metrics of a proposal of which so many of eight answers are right."""
    answers = iter([True] * right + [False] * 8)

    def answer(asked: Asked) -> str:
        if "Write a new program" in asked.prompt:
            return proposal
        return str(run("add 2", [3, 4])) if next(answers) else "[0]"

    task = next(iter(AbsoluteZero(kinds=["deduction"]).tasks(random.Random(0))))
    episode, _ = played(AbsoluteZero(), task, answer)
    assert [len(r.turns) for c in episode.children for r in c.rollouts] == [1] * len(
        episode.children
    )
    return dict(episode.rewards), dict(episode.metrics)


@pytest.mark.parametrize(("right", "reward"), [(0, 0.0), (2, 0.75), (4, 1.0), (8, 0.0)])
def test_the_proposer_wants_problems_that_are_solved_half_of_the_time(
    right: int, reward: float
) -> None:
    rewards, metrics = play("PROGRAM: add 2 INPUT: [3, 4]", right=right)
    assert rewards == {"proposer": reward, "solver": right / 8}
    assert metrics == {"gate": 1.0, "solved": right / 8, "operations": 1.0}


def test_answers_that_fail_are_not_wrong() -> None:
    arena = AbsoluteZero(answers=2, kinds=["deduction"])
    fails = iter([True, False])

    def answer(asked: Asked) -> str:
        if "Write a new program" in asked.prompt:
            return "PROGRAM: add 2 INPUT: [1, 2]"
        if next(fails):
            raise RuntimeError("the answer is lost")
        return "[3, 4]"

    episode, _ = played(arena, next(iter(arena.tasks(random.Random(0)))), answer)
    assert episode.rewards == {"proposer": 0.0, "solver": 1.0}


def test_bad_proposals_cost() -> None:
    assert play("I do not know.")[0]["proposer"] == -1.0
    rewards, metrics = play("PROGRAM: fly INPUT: [3, 4]")
    assert (rewards["proposer"], metrics) == (-0.5, {"gate": 0.0})


def test_a_problem_is_accepted_once_and_again_where_its_play_is_repeated() -> None:
    arena, rewards = AbsoluteZero(), list[float]()
    task = next(iter(arena.tasks(random.Random(0))))
    for seed in (1, 1, 2):
        episode, _ = played(
            arena,
            task,
            lambda a: "PROGRAM: add 2 INPUT: [3, 4]" if "Write a new" in a.prompt else "[0]",
            seed=seed,
        )
        rewards.append(episode.rewards["proposer"])
    assert rewards == [0.0, 0.0, -0.5]


def test_held_out_problems_are_the_same_for_everyone_and_have_solutions() -> None:
    held_out = [list(AbsoluteZero(seed=s).held_out(random.Random(s))) for s in (1, 2)]
    assert held_out[0] == held_out[1]
    assert [task.data.program.count("|") + 1 for task in held_out[0][:4]] == [1, 2, 3, 4]
    for task in held_out[0]:
        found: Problem = task.data
        solution = {
            "deduction": str(list(found.result)),
            "abduction": str(list(found.given)),
            "induction": f"PROGRAM: {found.program}",
        }[found.kind]
        episode, prompts = played(AbsoluteZero(), task, lambda _, said=solution: said)
        assert episode.rewards == {"proposer": 0.0, "solver": 1.0}
        assert (f"PROGRAM: {found.program}" in prompts[0]) is (found.kind != "induction")


def test_tasks_have_examples_that_pass_the_gate() -> None:
    for task in islice(AbsoluteZero().tasks(random.Random(1)), 30):
        kind, examples = task.data
        assert all(accepted(kind, e.program, e.given)[0] == e for e in examples)


@pytest.mark.parametrize("options", [{"kinds": ["magic"]}, {"answers": 1}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        AbsoluteZero(**options)
