"""A conversation that goes on, over HTTP: as token ids where the server takes them."""

import asyncio
import logging
from typing import Any

import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.clients.openai import OpenAIClient
from legos.records.message import Completion, Continuation, Message, Sampling, ToolCall

LAST = Completion(
    text="said", prompt_ids=(1, 2), token_ids=(3, 4), logprobs=(-1.0, -2.0), versions=(7, 7)
)
CHAT = (
    Message("user", "first"),
    Message("assistant", "said", (ToolCall("f", "{}", id="c"),)),
    Message("tool", "result", tool_call_id="c"),
    Message("user", "more"),
)
ASKED = Continuation(last=LAST, messages=CHAT, num_new=2)
END = 9


def tokenized(asked: HttpAsked) -> HttpAnswer:
    """A template of one token for a role, one for each letter, and one for the end of a turn."""
    ids: list[int] = []
    for message in asked.body["messages"]:
        ids += [100 + len(message["role"]), *map(ord, message["content"]), END]
    return HttpAnswer({"tokens": [*ids, 100], "count": len(ids) + 1})


def answered(asked: HttpAsked) -> HttpAnswer:
    choice = {
        "text": "x",
        "message": {"content": "x"},
        "token_ids": [5],
        "token_logprobs": [-0.5],
        "versions": [7],
    }
    prompt = asked.body.get("prompt", [1])
    return HttpAnswer(
        {"model": asked.body["model"], "choices": [choice], "prompt_token_ids": prompt}
    )


def reply(asked: HttpAsked) -> HttpAnswer:
    return tokenized(asked) if asked.path == "/tokenize" else answered(asked)


def ask(script: ScriptedServer, prompt: Continuation, times: int = 1) -> Completion:
    async def go(url: str) -> Completion:
        async with OpenAIClient(f"{url}/v1") as client:
            for _ in range(times - 1):
                await client.complete(prompt, Sampling(), adapter="policy@7")
            return await client.complete(prompt, Sampling(), adapter="policy@7")

    with serving(script) as url:
        return asyncio.run(go(url))


def models(owner: str) -> Any:
    return {"data": [{"id": "policy@7", "owned_by": owner}]}


NEW = (104, *map(ord, "result"), END, 104, *map(ord, "more"), END, 100)


def test_the_tokens_so_far_stand_and_the_server_renders_what_is_new() -> None:
    script = ScriptedServer(reply, models=models("legos"))
    said = ask(script, ASKED, times=2)
    assert said.prompt_ids == (1, 2, 3, 4, END, *NEW)
    first, second, *answers = script.asked
    assert [asked.path for asked in (first, second)] == ["/tokenize"] * 2  # once for both times
    assert (
        first.body["messages"][2:]
        == second.body["messages"][2:]
        == [
            {"role": "tool", "content": "result", "tool_call_id": "c"},
            {"role": "user", "content": "more"},
        ]
    )
    assert [asked.path for asked in answers] == ["/v1/completions"] * 2
    assert {tuple(asked.body["prompt"]) for asked in answers} == {said.prompt_ids}


def test_an_end_of_turn_that_was_sampled_is_not_added_again() -> None:
    ended = Completion(
        text="said", prompt_ids=(1, 2), token_ids=(3, END), logprobs=(-1.0, -2.0), versions=(7, 7)
    )
    script = ScriptedServer(reply, models=models("legos"))
    going_on = Continuation(last=ended, messages=CHAT, num_new=2)
    assert ask(script, going_on).prompt_ids == (1, 2, 3, END, *NEW)


@pytest.mark.parametrize(
    "refusal",
    [
        HttpAnswer({"detail": "Not Found"}, status=404),
        HttpAnswer({"tokens": [1, 2], "count": 2}),  # the answer does not matter to the template
    ],
)
def test_a_server_that_does_not_render_gets_the_messages(
    refusal: HttpAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(asked: HttpAsked) -> HttpAnswer:
        return refusal if asked.path == "/tokenize" else answered(asked)

    script = ScriptedServer(refuse, models=models("legos"))
    with caplog.at_level(logging.WARNING):
        ask(script, ASKED, times=2)
    bodies = [asked.body for asked in script.asked if asked.path == "/v1/chat/completions"]
    assert [len(body["messages"]) for body in bodies] == [4, 4]
    assert caplog.text.count("conversations are rendered again from their messages") == 1


def test_another_endpoint_gets_the_messages_with_their_tool_calls() -> None:
    async def go(url: str) -> Completion:
        async with OpenAIClient(f"{url}/v1") as client:
            return await client.complete(ASKED, Sampling())

    script = ScriptedServer(answered, models={"data": [{"id": "gpt", "owned_by": "x"}]})
    with serving(script) as url:
        asyncio.run(go(url))
    (asked,) = script.asked
    assert asked.body["messages"][1:3] == [
        {
            "role": "assistant",
            "content": "said",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "result", "tool_call_id": "c"},
    ]
