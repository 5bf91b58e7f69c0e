"""Every program of the page on writing arenas plays."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legos import Climb, GameArena, GRPOCredit
from legos.arena.registry import find_arena
from legos.fakes import Asked, ScriptedClient
from legos.games.exact import GameTree, exploitability, optimal_policy, uniform_policy
from legos.records.group import Group
from legos.wiring.arena import make_arena

PAGE = (Path(__file__).parents[2] / "docs" / "arenas" / "writing.md").read_text()
PROGRAMS = {
    re.findall(r"^class (\w+)\((?:Arena|Game)\)", block, re.M)[-1]: block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S)
}


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Group]:
    """Play one step of a program of the page."""

    def one_step(name: str, answer: Callable[[Asked], str], **attributes: Any) -> Group:
        place = tmp_path / f"{name.lower()}.py"
        place.write_text(PROGRAMS[name])
        arena = find_arena(f"{place}:{name}")(ScriptedClient(answer), credit_assigner=GRPOCredit())
        for attribute, value in attributes.items():
            setattr(arena, attribute, value)
        return asyncio.run(arena.step())

    return one_step


def test_named_reward_parts(play: Callable[..., Group]) -> None:
    def answer(asked: Asked) -> str:
        return {"France": "[Paris]", "Peru": "Lima", "Japan": "Oslo"}[asked.prompt.split()[2][:-1]]

    batch = play("Capital", answer, tasks_per_step=3, group_size=1)
    assert [e.rewards["player"] for e in batch.episodes] == [1.2, 1.0, 0.0]
    assert batch.metrics["reward_part/player/format"] == pytest.approx(1 / 3)


def test_a_game_with_chance_and_moves_at_once(tmp_path: Path) -> None:
    """One die is better, whatever the other chooses."""
    place = tmp_path / "throw.py"
    place.write_text(PROGRAMS["Throw"])
    arena = make_arena(f"{place}:Throw", ScriptedClient(lambda asked: asked.sampling.choices[0]))
    batch = asyncio.run(arena.step())
    assert {episode.rewards["ann"] for episode in batch.episodes} == {-1.0, 0.0, 1.0}
    assert isinstance(arena, GameArena)
    tree = GameTree(arena.game)
    best = optimal_policy(tree)
    assert best is not None
    assert [best[role, "Throw one die or two?"]["one"] for role in ("ann", "bob")] == [
        pytest.approx(1.0, abs=1e-3)
    ] * 2
    assert exploitability(tree, uniform_policy(tree)) > 0.1


def test_code_that_may_hang(play: Callable[..., Group]) -> None:
    answers = iter(["4 * 6", "9 ** 9 ** 9 ** 9", "4 *", "5 * 5"])
    batch = play("Target", lambda _: next(answers), tasks_per_step=1, group_size=4)
    assert [e.error for e in batch.episodes] == [None] * 4
    assert [e.rewards["player"] for e in batch.episodes] == [1.0, 0.0, 0.0, 0.0]


def test_tools(play: Callable[..., Group]) -> None:
    def answer(asked: Asked) -> str:
        results = [message.content for message in asked.messages if message.role == "tool"]
        name, arguments = [
            ("price", {"thing": asked.messages[0].content.split()[5]}),
            ("multiply", {"a": 4, "b": results[0] if results else 0}),
            ("", {}),
        ][len(results)]
        made = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>{made}</tool_call>" if name else results[1]

    batch = play("Shop", answer, tasks_per_step=3, group_size=1)
    assert [e.error for e in batch.episodes] == [None] * 3
    assert [e.rewards["player"] for e in batch.episodes] == [0.98] * 3


def test_a_judge_and_a_store(play: Callable[..., Group]) -> None:
    def answer(asked: Asked) -> str:
        if "Which answer" in asked.prompt:
            return "[B]" if "Answer A:\n\n" in asked.prompt else "[A]"
        return f"the {asked.prompt.split()[3]}"

    batch = play("Best", answer, tasks_per_step=3, group_size=1)
    assert [e.rewards["writer"] for e in batch.episodes] == [1.0] * 3
    assert batch.metrics["arena/judge_agreement"] == 1.0
    assert {sample.role for sample in batch.samples} == {"writer"}


def test_questions_from_a_file(
    play: Callable[..., Group], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(asked: Asked) -> str:
        return str(2 * int(asked.prompt.split()[0]))

    batch = play("Sums", answer, tasks_per_step=2, group_size=1)
    assert [e.rewards["player"] for e in batch.episodes] == [1.0, 1.0]


def test_levels_and_a_curriculum(play: Callable[..., Group]) -> None:
    """Three numbers are asked for once two are mastered, and the plays move the level's success."""

    def answer(asked: Asked) -> str:
        numbers = [int(word) for word in asked.prompt.split() if word.isdigit()]
        return str(sum(numbers)) if len(numbers) == 2 else "?"

    climb = Climb(easier=0.0)
    for level, right in (("two", 1.0), ("three", 0.0)):
        batch = play("Sum", answer, tasks_per_step=3, group_size=2, curriculum=climb)
        assert [e.task.level for e in batch.episodes] == [level] * 6
        assert [e.rewards["player"] for e in batch.episodes] == [right] * 6
        assert batch.metrics[f"curriculum/success/{level}"] == right
        climb.record("two", [1.0] * 200)
    assert climb.success["two"] > climb.threshold > climb.success["three"]
