"""Zorplex: its tables, its tools, and how plays are counted."""

import asyncio
import random
from itertools import islice
from typing import Any

import pytest
from scripted_play import played

from arenas.zorplex import KINDS, LEVELS, WORDS, Puzzle, Zorplex
from legos import GRPOCredit, Task
from legos.fakes import Asked, ScriptedClient

PUZZLE = Puzzle("simple", "What is the number of jade?", {"LOOKUP[jade]": "17"}, 17, 1)


def outcome(*answers: str, puzzle: Puzzle = PUZZLE) -> tuple[float, set[str], list[str]]:
    """Reward, how the play is counted, and the prompts."""
    script = iter(answers)

    def answer(_: Asked) -> str:
        return next(script)

    arena = Zorplex(turns=len(answers))
    episode, prompts = played(arena, Task(id="p", data=puzzle), answer)
    counted = {name for name, value in episode.metrics.items() if value and name != "calls"}
    return episode.rewards["player"], counted, prompts


@pytest.mark.parametrize(
    ("answers", "reward", "mode"),
    [
        (("LOOKUP[jade]", "[ANSWER] 17"), 1.2, "success"),
        (("LOOKUP[jade] LOOKUP[jade]", "[ANSWER] 17"), 1.1, "success"),
        (("[ANSWER] 17",), 1.2, "success"),
        (("[ANSWER]: 17",), 1.2, "success"),
        (("**[ANSWER]** **17**",), 1.2, "success"),
        (("LOOKUP[jade]", "It is 17."), 0.0, "wrong_format"),
        (("[ANSWER] 17.5",), 0.2, "wrong_answer"),
        (("[ANSWER] 18",), 0.2, "wrong_answer"),
        (("LOOKUP[jade]" * 4, "[ANSWER] 17"), 0.9, "tool_spam"),
        (("LOOKUP[jade]" * 4, "17"), -0.3, "tool_spam"),
        (("LOOKUP[jade]" * 4 + " [ANSWER] 17",), 0.9, "tool_spam"),
        (("", ""), 0.0, "wrong_format"),
        ((f"[ANSWER] {'9' * 5000}", ""), 0.0, "wrong_format"),
    ],
)
def test_rewards_and_counts(answers: tuple[str, ...], reward: float, mode: str) -> None:
    found, counted, _ = outcome(*answers)
    assert found == pytest.approx(reward)
    assert counted == {mode}


def test_a_minus_sign_is_read() -> None:
    negative = PUZZLE._replace(answer=-17)
    assert outcome("[ANSWER] \u221217", puzzle=negative)[:2] == (1.2, {"success"})


def test_the_separators_of_thousands_are_read() -> None:
    large = PUZZLE._replace(answer=2550)
    assert outcome("[ANSWER] 2,550, in all", puzzle=large)[:2] == (1.2, {"success"})


def test_results_are_the_next_prompt() -> None:
    _, _, prompts = outcome(
        "LOOKUP[jade] and LOOKUP[ivory] and COMPUTE[2 + 3 * 4]", "COMPUTE[2 **]", "?", "[ANSWER] 17"
    )
    assert prompts[1] == "LOOKUP[jade] = 17\nLOOKUP[ivory] = unknown\nCOMPUTE[2 + 3 * 4] = 14"
    assert prompts[2].startswith("COMPUTE[2 **] = error: ")
    assert prompts[3] == "There is neither a call nor a number after [ANSWER] in this."


def test_the_curriculum_begins_with_easy_tables() -> None:
    arena = Zorplex(ScriptedClient(lambda _: "[ANSWER] 0"), credit_assigner=GRPOCredit())
    arena.tasks_per_step, arena.group_size = 4, 2
    batch = asyncio.run(arena.step())
    assert {episode.task.level for episode in batch.episodes} == {"easy"}
    assert batch.metrics["curriculum/success/easy"] == 0.0
    tasks = list(islice(arena.tasks(random.Random(0)), 12))
    assert [task.level for task in tasks] == [level for level in LEVELS for _ in KINDS]


@pytest.mark.parametrize("level", LEVELS)
def test_puzzles_can_be_solved_with_the_calls_they_need(level: str) -> None:
    arena = Zorplex(levels=[level])
    tasks = list(islice(arena.tasks(random.Random(4)), 40))
    assert len({task.id for task in tasks}) == 40
    assert {task.data.kind for task in tasks} == set(KINDS)
    for task in tasks:
        puzzle: Puzzle = task.data
        words = [word.strip("?") for word in puzzle.question.split() if word.strip("?") in WORDS]
        calls, values = 0, list[int]()
        for word in words:
            found = word
            while not found.isdigit():
                key = f"GETKEY[{found}]" if puzzle.kind == "multi_step" else f"LOOKUP[{found}]"
                key = f"FETCH[{found}]" if found.startswith("ZK_") else key
                found = puzzle.results[key].removeprefix("SEE: ")
                calls += 1
            values.append(int(found))
        signs = [sign for sign in puzzle.question.strip("?").split() if sign in "+-*"]
        text = str(values[0]) + "".join(f" {s} {v}" for s, v in zip(signs, values[1:], strict=True))
        assert eval(text) == puzzle.answer
        assert calls + bool(signs) == puzzle.needed  # all COMPUTE in one call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": []}, "expected some of easy"),
        ({"kinds": ["hard"]}, "expected some of simple"),
        ({"kinds": []}, "expected some of simple"),
        ({"levels": ["huge"]}, "expected some of easy"),
        ({"turns": 0}, "at least 1 reply"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Zorplex(**options)
