"""Prompts of token ids: asked as they are, and rows of files that have them."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from arenas.math import Math
from legos import Arena, Client, GRPOCredit, Table, Task, read_tasks
from legos.errors import ArenaError
from legos.fakes import Asked, ScriptedClient
from legos.records.group import Group
from legos.records.message import Completion, Message, Prompt, Sampling
from legos.records.names import POLICY


class Seen(ScriptedClient):
    """A scripted client that keeps the prompts as they came."""

    def __init__(self, answers: Any) -> None:
        super().__init__(answers)
        self.prompts: list[Prompt] = []

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        self.prompts.append(prompt)
        return await super().complete(prompt, sampling, adapter=adapter)


class Asks(Arena):
    """One play that asks token ids between two questions of text."""

    tasks_per_step, group_size = 1, 2
    system: Mapping[str, str] = {"player": "Be brief."}
    illegal = "retry"

    def __init__(self, client: Client, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.options: dict[str, Any] = {}
        self.prompt: Any = [72, 105]

    def tasks(self, rng: object) -> list[Task]:
        return [Task(id="one")]

    async def play(self, t: Table) -> dict[str, float]:
        await t.ask("player", "First?")
        await t.ask("player", self.prompt, **self.options)
        await t.ask("player", "Last?")
        return {"player": 1.0}


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step(concurrency=1))


def test_token_ids_are_the_whole_prompt_and_stay_out_of_the_conversation() -> None:
    client = Seen(lambda _: "yes")
    batch = step(Asks(client, credit_assigner=GRPOCredit()))
    assert client.prompts[1] == (72, 105)
    assert [m.content for m in client.asked[2].messages] == ["Be brief.", "First?", "yes", "Last?"]
    turn = batch.episodes[0].rollouts[0].turns[1]
    assert turn.messages == (Message("user", "[72, 105]"),)
    assert turn.completion.prompt_ids == (72, 105)
    assert [sample.token_ids[:2] for sample in batch.samples[:2]].count((72, 105)) == 1
    chosen = sum(len(sample.positions) for sample in batch.samples)
    assert batch.tokens_generated == chosen == 2 * 3 * len("yes ")


def test_an_illegal_answer_is_asked_again_with_the_same_tokens() -> None:
    client = Seen(["one", "no", "a", "two"])
    arena = Asks(client, credit_assigner=GRPOCredit())
    arena.group_size, arena.options = 1, {"choices": ["a", "b"]}
    step(arena)
    assert client.prompts[1] == client.prompts[2] == (72, 105)


@pytest.mark.parametrize("prompt", [[], [1, "2"], [1.0], [True], [-1]])
def test_what_is_no_prompt_ends_the_run(prompt: Any) -> None:
    arena = Asks(Seen(lambda _: "yes"), credit_assigner=GRPOCredit())
    arena.prompt = prompt
    with pytest.raises(ArenaError, match="expected text, or token ids: whole numbers from 0"):
        step(arena)


def test_tools_need_text() -> None:
    def tool() -> int:
        """One."""
        return 1

    arena = Asks(Seen(lambda _: "yes"), credit_assigner=GRPOCredit())
    arena.options = {"tools": [tool]}
    with pytest.raises(ArenaError, match="'player' is asked with tools and token ids"):
        step(arena)


def rows(path: Path, *given: dict[str, object]) -> Path:
    file = path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"q": "2?", "a": "2", **row}) for row in given))
    return file


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"q": [1, "x"]}, "rows.jsonl:2: 'q' is [1, 'x'], a list; expected a text, or token ids"),
        ({"q": []}, "rows.jsonl:2: 'q' is [], a list; expected a text, or token ids"),
        ({"q": None}, "rows.jsonl:2: 'q' is None; expected a text, or token ids"),
        ({"n": 0}, "rows.jsonl:2: 'n' is 0, an int; expected a whole number, at least 1"),
        ({"n": "4"}, "rows.jsonl:2: 'n' is '4', a str; expected a whole number, at least 1"),
    ],
)
def test_a_malformed_prompt_is_named_by_file_and_line(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    file = rows(tmp_path, {}, row)
    with pytest.raises(ArenaError) as raised:
        read_tasks(file, prompt="q", group_size="n")
    assert message in str(raised.value)


def test_rows_of_token_ids_play_as_they_are_each_so_often(tmp_path: Path) -> None:
    def answer(asked: Asked) -> str:
        return "#### 2"

    client = Seen(answer)
    file = rows(tmp_path, {"q": [81, 63], "n": 3}, {"n": 1}, {"q": [90]})
    arena = Math(
        client,
        data=str(file),
        question="q",
        answer="a",
        group_size="n",
        held_out=0.0,
        credit_assigner=GRPOCredit(),
    )
    arena.tasks_per_step, arena.group_size = 3, 2
    episodes = step(arena).episodes
    counts = Counter(str(prompt) for prompt in client.prompts)
    assert (counts["(81, 63)"], counts["(90,)"]) == (3, 2)
    assert len(episodes) == len({episode.seed for episode in episodes}) == 6
    assert {episode.rewards["player"] for episode in episodes} == {1.1}


def test_a_resumed_run_keeps_the_seeds_of_groups_of_several_sizes(tmp_path: Path) -> None:
    def made() -> Asks:
        arena = Asks(Seen(lambda _: "yes"))
        arena.tasks_per_step = 4
        arena.tasks = lambda rng: [Task(id=f"{n}", group_size=n or None) for n in range(4)]
        return arena

    whole, resumed = made(), made()
    groups = [whole.cursor.next_group("id") for _ in range(6)]
    assert [len(group.plays) for group in groups] == [2, 1, 2, 3, 2, 1]
    seeds = [seed for group in groups for _, seed in group.plays]
    assert len(set(seeds)) == len(seeds)
    whole.cursor.finish(groups[0])
    whole.cursor.finish(groups[2])
    resumed.restore(json.loads(json.dumps(whole.state())))
    for group in (*groups[1:2], *groups[3:]):
        assert resumed.cursor.next_group("id").plays == group.plays


@pytest.mark.parametrize("size", [0, 2.0])
def test_a_group_size_that_is_none(size: Any) -> None:
    arena = Asks(Seen(lambda _: "yes"), credit_assigner=GRPOCredit())
    arena.tasks = lambda rng: [Task(id="one", group_size=size)]
    with pytest.raises(ArenaError, match=f"group_size={size}, .* expected a whole number"):
        step(arena)
