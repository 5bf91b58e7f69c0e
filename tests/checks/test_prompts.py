"""``check_arena``: which seat reads what of another one."""

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from talks import found, talk

from legos import Arena, Table, Task
from legos.checks import check_arena


def test_a_text_of_another_play_is_found() -> None:
    heard: list[str] = []

    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        heard.append((await t.ask("ann", "Say something.")).answer)
        await t.ask("bob", f"Somebody says: {heard[0]}")
        return {"ann": 0.0, "bob": 0.0}

    finding = found(talk(play=play), "secrets")
    assert finding.passed is False
    assert "in another play" in finding.text


@pytest.mark.parametrize("shared", ["text", "thinking"])
def test_thinking_in_the_prompt_of_another_seat_is_found(shared: str) -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        said = await t.ask("ann", "Say something.")
        await t.ask("bob", f"Ann says: {getattr(said, shared)}")
        return {"ann": 0.0, "bob": 0.0}

    finding = found(talk(play=play), "thinking")
    assert finding.passed is False
    assert "'bob' reads what 'ann' thinks" in finding.text
    assert "reply.answer" in finding.text
    assert found(talk(), "thinking").passed is True


def test_thinking_in_the_prompt_of_a_spawned_play_is_found() -> None:
    class Child(Arena):
        roles = ("cid",)

        async def play(self, t: Table) -> Mapping[str, float]:
            await t.ask("cid", str(t.task.data))
            return {"cid": 0.0}

    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        replies = await t.ask_all({"ann": "?", "bob": "?"}, max_tokens=8)
        await t.spawn(Child, Task(id="c", data=replies["bob"].text))
        return {"ann": 0.0, "bob": 0.0}

    assert "'cid' reads what 'bob' thinks" in found(talk(play=play), "thinking").text


def test_a_seat_may_read_its_own_thinking_and_what_a_store_keeps() -> None:
    async def play(self: Arena, t: Table) -> Mapping[str, float]:
        said = await t.ask("ann", "Say something.")
        await t.ask("ann", f"You thought {said.thinking}, and before {dict(t.store('said'))}")
        t.store("said")["ann"] = said.answer
        await t.ask("bob", "?")
        return {"ann": 0.0, "bob": 0.0}

    def held_out(self: Arena, rng: random.Random) -> Iterable[Task]:
        return [Task(id="held out", data=0.5)]  # whose plays have thoughts of their own

    arena = talk(play=play, held_out=held_out)
    findings = {each.name: each for each in check_arena(arena, plays=6)}
    assert findings["thinking"].passed is True
    assert findings["secrets"].passed is None


def test_a_text_that_one_role_alone_may_read_is_found_elsewhere() -> None:
    def private(self: Arena, task: Task) -> Mapping[str, Sequence[str]]:
        text = f"the number {task.data}"
        return {"ann": text if task.id == "0" else [text]}  # one text is not a list of letters

    def plays(role: str) -> Arena:
        async def play(self: Arena, t: Table) -> Mapping[str, float]:
            t.tell(f"Keep the number {t.task.data} secret.", to=role)
            await t.ask("ann", "?")
            await t.ask("bob", "?")
            return {"ann": 0.0, "bob": 0.0}

        return talk(play=play, private=private)

    assert found(plays("ann"), "private").passed is True
    finding = found(plays("bob"), "private")
    assert finding.passed is False
    assert "'bob' reads 'the number 0." in finding.text
