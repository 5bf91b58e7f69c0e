"""Scripted answers of an arena: what is written, and that it can be imitated."""

import json
import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from arenas.countdown import Countdown, solution
from legos.apps.imitate import Imitation
from legos.cli.process import main
from legos.records.episode import Task


def written(arena: str, to: Path, *options: str, plays: int = 40) -> list[dict[str, Any]]:
    given = ("--to", str(to), "--plays", str(plays), *options)
    assert not main(["arenas", "answers", arena, *given])
    return [json.loads(line) for line in to.read_text().splitlines()]


def test_right_answers_and_answers_of_the_right_form(tmp_path: Path) -> None:
    two = ("--play.options.size", "2")
    right = written("countdown", tmp_path / "right.jsonl", *two)
    formed = written("countdown", tmp_path / "formed.jsonl", "--by", "example", *two)
    assert len(right) == len(formed) == 40
    found = {"right": 0, "formed": 0}
    for name, rows in (("right", right), ("formed", formed)):
        for row in rows:
            words = row["prompt"][0]["content"].split()
            numbers, target = [int(words[1].strip(",")), int(words[2])], int(words[-4].strip("."))
            value = solution(row["completion"], numbers)
            assert value is not None
            found[name] += value == target
    assert found["right"] == 40
    assert 0 < found["formed"] < 40
    assert len(Imitation(data=str(tmp_path / "right.jsonl"), held_out=0.0).answers) == 40


def test_every_turn_is_an_answer_after_what_was_said_before(tmp_path: Path) -> None:
    rows = written("zorplex", tmp_path / "calls.jsonl", "--play.options.kinds", '["simple"]')
    assert len(rows) == 80
    call, answer = rows[:2]
    assert [m["role"] for m in answer["prompt"]] == ["user", "assistant", "user"]
    assert answer["prompt"][1]["content"] == call["completion"]
    assert answer["prompt"][0] == call["prompt"][0]


SHOP = """
from legos import Arena, Task


def price(thing: str) -> int:
    return 7


class Shop(Arena):
    def tasks(self, rng):
        yield Task(id="tea")

    async def play(self, t):
        reply = await t.ask("player", "tea?", tools=[price])
        return {"player": float(reply.answer == "7")}

    def oracle(self, role, prompt, task, rng):
        call = '<tool_call>{"name": "price", "arguments": {"thing": "tea"}}</tool_call>'
        return [call if prompt == "tea?" else "7"]
"""


def test_calls_and_their_tools_are_written(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    rows = written(f"{tmp_path}/shop.py:Shop", tmp_path / "calls.jsonl", plays=1)
    assert [tool["function"]["name"] for row in rows for tool in row["tools"]] == ["price"] * 2
    (call,) = rows[0]["completion"][0]["tool_calls"]
    assert call["function"] == {"name": "price", "arguments": '{"thing": "tea"}'}
    assert rows[1]["prompt"][1:] == [
        rows[0]["completion"][0],
        {"role": "tool", "content": "7", "tool_call_id": call["id"]},
    ]
    assert rows[1]["completion"] == "7"
    imitated = Imitation(data=str(tmp_path / "calls.jsonl"), held_out=0.0).answers
    assert imitated[1].data[2] == rows[1]["tools"]


def test_a_game_gives_random_moves(tmp_path: Path) -> None:
    rows = written("nim", tmp_path / "moves.jsonl", "--by", "example")
    assert {row["completion"] for row in rows} == {"1", "2", "3"}


def test_what_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*options: str) -> str:
        assert main(["arenas", "answers", *options])
        return " ".join(capsys.readouterr().err.split())

    to = ("--to", str(tmp_path / "a.jsonl"))
    said = refused("sums", *to, "--by", "example")
    assert "sums has no example answer of player to" in said
    assert "--by oracle" in said
    assert "--to is a.txt; expected the name of a .jsonl file" in refused("sums", "--to", "a.txt")
    assert "Must be >= 1" in refused("sums", *to, "--plays", "0")
    assert not list(tmp_path.iterdir())


def test_held_out_tasks_are_left_out(tmp_path: Path) -> None:
    def prompts(tasks: Iterable[Task]) -> set[str]:
        """Those of so many random tasks that none is missing."""
        drawn = [task.data for task in islice(tasks, 5000)]
        return {f"Use {a}, {b} once each with + - * / to make {of}." for (a, b), of in drawn}

    rows = written("countdown", tmp_path / "a.jsonl", "--play.options.size", "2", plays=200)
    asked = {row["prompt"][0]["content"].partition(" Write")[0] for row in rows}
    arena, rng = Countdown(size=2), random.Random(0)
    assert asked <= prompts(arena.tasks(rng))
    assert not asked & prompts(arena.held_out(rng))
