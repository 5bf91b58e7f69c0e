"""Everything that the seats of a play were shown and sampled is in its stored form."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos import Arena, GRPOCredit, Seat, Task
from legos.fakes import ScriptedClient, make_sample
from legos.play.table import Table
from legos.records.episode import Episode, Rollout, Turn
from legos.records.group import Group
from legos.records.message import Completion, Message, Sampling, ToolCall
from legos.run.episodes import (
    StoredMessage,
    episode_line,
    parse_episode,
    prompt_of,
    stored_episode,
)
from legos.run.stored import groups_from_json, groups_to_json
from legos.wiring.arena import make_arena


def look_up(word: str) -> str:
    """The colour of a thing."""
    return {"sky": "blue"}[word]


class Talk(Arena):
    """Two questions, with texts that are told before them, and a question to another seat."""

    roles = ("ann", "bob")
    system: ClassVar = {"ann": "You are Ann."}  # pyrefly: ignore[bad-override]
    tasks_per_step = 1
    group_size = 1

    def tasks(self, rng: Any) -> list[Task]:
        return [Task(id="talk")]

    def seats(self, task: Task) -> Mapping[str, Seat]:
        seats = super().seats(task)
        sampling = Sampling(temperature=0.5, max_tokens=500, stop=("END",))
        return {**seats, "bob": with_fields(seats["bob"], sampling=sampling)}

    async def play(self, t: Table) -> Mapping[str, float]:
        t.tell("The sky is up.")
        t.tell("Be brief.", to="ann")
        await t.ask("ann", "One?", choices=("1", "2"))
        t.tell("That was one.")
        await t.ask("bob", "Colour?", tools=[look_up])
        await t.ask("ann", "Two?", max_tokens=7, stop="!")
        await t.ask("ann", [65, 66])
        return {"ann": 1.0, "bob": 0.0}


CALLS = "".join(
    f'<tool_call>{{"name": "look_up", "arguments": {{"word": "{word}"}}}}</tool_call>'
    for word in ("sky", "sea")
)


def played(arena: type[Arena] = Talk) -> Episode:
    said = {"One?": "1", "Colour?": CALLS, "Two?": "<think>so</think>two", "B": "token ids"}
    client = ScriptedClient(lambda asked: said.get(asked.prompt, "blue"))
    batch = asyncio.run(arena(client, credit_assigner=GRPOCredit()).step())
    [episode] = batch.episodes
    assert episode.error is None
    return episode


def stored(episode: Episode) -> dict[str, Any]:
    return json.loads(episode_line(stored_episode(episode)))


def calls_of(message: Message) -> list[list[str]]:
    return [[call.name, call.arguments] for call in message.tool_calls]


def prompts_of() -> Callable[[Any], Iterator[tuple[list[dict[str, Any]], list[int]]]]:
    """The function of docs/run/runs.md that reads prompts back."""
    page = (Path(__file__).parents[2] / "docs" / "run" / "runs.md").read_text()
    code = re.search(r"```python\n(def prompts.*?)```", page, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["prompts"]


@pytest.mark.parametrize("remember", [True, False])
def test_every_prompt_can_be_read_back(remember: bool) -> None:
    episode = played(type("Forgets", (Talk,), {"remember": remember}))
    for rollout, seat in zip(episode.rollouts, stored(episode)["seats"], strict=True):
        found = [
            ([(m["role"], m["content"]) for m in messages], ids)
            for messages, ids in prompts_of()(seat)
        ]
        assert found == [
            (
                [(m.role, m.content) for m in turn.messages[:-1]],
                list(turn.completion.prompt_ids),
            )
            for turn in rollout.turns
        ]
        [whole] = [each for each in stored_episode(episode).seats if each.role == rollout.role]
        for index, turn in enumerate(rollout.turns):
            shown = [StoredMessage(m.role, m.content, calls_of(m)) for m in turn.messages]
            assert prompt_of(whole, index) == shown
        for turn, written in zip(rollout.turns, seat["turns"], strict=True):
            last = turn.messages[-1]
            assert (last.role, last.content) == (written["asked_as"], written["asked"])


def test_what_is_told_stands_once_before_the_question_that_follows() -> None:
    ann, bob = stored(played())["seats"]
    one, two, ids = ann["turns"]
    assert [(m["role"], m["content"]) for m in one["messages"]] == [
        ("system", "You are Ann."),
        ("user", "The sky is up."),
        ("user", "Be brief."),
    ]
    assert (one["messages_kept"], one["asked_as"], one["asked"]) == (0, "user", "One?")
    assert [(m["role"], m["content"]) for m in two["messages"]] == [("user", "That was one.")]
    assert (two["messages_kept"], two["asked"]) == (5, "Two?")
    assert (ids["messages"], ids["messages_kept"], ids["asked"]) == ([], 0, "[65, 66]")
    assert (ids["prompt_ids"], ids["prompt_ids_kept"]) == ([65, 66], 0)
    _, results = bob["turns"]
    sky, sea = [call[0] for call in bob["turns"][0]["tool_calls"]], results["messages"]
    assert sky == ["look_up"] * 2
    assert [(m["role"], m["content"]) for m in sea] == [("tool", "blue")]
    assert results["asked_as"] == "tool"
    assert results["asked"].startswith("error: KeyError")


def test_a_continuation_has_only_its_new_token_ids() -> None:
    one, two, _ = stored(played())["seats"][0]["turns"]
    before = len(one["prompt_ids"]) + len(one["token_ids"])
    assert (one["prompt_ids_kept"], two["prompt_ids_kept"]) == (0, before)
    assert "".join(map(chr, two["prompt_ids"])) == "\0That was one.Two?"[-len(two["prompt_ids"]) :]
    assert len(two["prompt_ids"]) < 20


def test_settings_of_seats_and_requests() -> None:
    ann, bob = stored(played())["seats"]
    assert ann["sampling"] == {"temperature": 1.0, "max_tokens": 256, "stop": []}
    assert bob["sampling"] == {"temperature": 0.5, "max_tokens": 500, "stop": ["END"]}
    one, two, _ = ann["turns"]
    assert (one["choices"], one["restricted"], one["sampling"]) == (["1", "2"], False, {})
    assert (two["choices"], two["sampling"]) == ([], {"max_tokens": 7, "stop": ["!"]})
    [tools] = {turn["sampling"]["tools"] for turn in bob["turns"]}
    assert json.loads(tools)[0]["function"]["name"] == "look_up"


def test_turns_of_games_have_their_choices() -> None:
    arena = make_arena("nim", ScriptedClient(lambda asked: asked.sampling.choices[0]))
    arena.restrict_choices = True
    [episode, *_] = asyncio.run(arena.step()).episodes
    turn = stored(episode)["seats"][0]["turns"][0]
    assert turn["choices"][0] == turn["said"]
    assert turn["restricted"] is True
    assert turn["messages"] == []


@given(st.floats(-1e4, 0.0, width=32))
def test_log_probabilities_are_exact_as_float32(logprob: float) -> None:
    completion = Completion(
        text="1", prompt_ids=(1,), token_ids=(2,), logprobs=(logprob,), versions=(0,)
    )
    turn = Turn(messages=(Message("user", "?"),), completion=completion)
    rollout = Rollout(role="player", seat="policy", policy="policy", turns=(turn,))
    again = stored(replace(make_episode({}), rollouts=(rollout,)))["seats"][0]["turns"][0]
    assert np.float32(again["logprobs"][0]) == np.float32(logprob)
    assert len(json.dumps(again["logprobs"][0])) <= 16


@pytest.mark.parametrize("logprob", [None, float("nan"), float("-inf")])
def test_log_probabilities_that_are_no_finite_numbers_are_left_out(logprob: Any) -> None:
    turn = make_turn(logprob=logprob)
    episode = make_episode({"player": 1.0}, turns={"player": (turn,)})
    again = parse_episode(episode_line(stored_episode(episode)))
    assert again.seats[0].turns[0].logprobs == []


def test_messages_of_an_agent_that_rewrites_them_are_stored_whole() -> None:
    call = ToolCall("add", '{"a": 1}', id="c1")
    said = Completion(text="<think>x</think>one ", tool_calls=(call,))
    first = Turn(messages=(Message("user", "One?"),), completion=said)
    rewritten = (
        Message("user", "One?"),
        Message("assistant", "One!", (call,)),
        Message("tool", "2", tool_call_id="c1"),
    )
    second = Turn(messages=rewritten, completion=Completion(text="2"))
    rollout = Rollout(role="player", seat="policy", policy=None, turns=(first, second))
    _, turn = stored(replace(make_episode({}), rollouts=(rollout,)))["seats"][0]["turns"]
    assert (turn["messages_kept"], turn["asked_as"], turn["asked"]) == (1, "tool", "2")
    assert turn["messages"] == [
        {"role": "assistant", "content": "One!", "tool_calls": [["add", '{"a": 1}']]}
    ]


def test_plays_in_a_checkpoint_keep_their_settings() -> None:
    episode = played()
    sample = make_sample()
    batch = Group(samples=(sample,), episodes=(episode,), tokens_generated=len(sample.positions))
    text = json.dumps(groups_to_json([batch], plays_kept=1.0))
    [again] = groups_from_json(json.loads(text))
    assert stored(again.episodes[0]) == stored(episode)
