"""A conversation that goes on, over HTTP: from its tokens where the server takes them."""

import asyncio
from typing import Any

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


def answered(asked: HttpAsked) -> HttpAnswer:
    choice = {
        "text": "x",
        "message": {"content": "x"},
        "token_ids": [5],
        "token_logprobs": [-0.5],
        "versions": [7],
    }
    prompt = [*asked.body.get("prompt_token_ids", ()), 9]
    return HttpAnswer(
        {"model": asked.body["model"], "choices": [choice], "prompt_token_ids": prompt}
    )


def models(owner: str) -> Any:
    return {"data": [{"id": "policy@7", "owned_by": owner}]}


def ask(script: ScriptedServer) -> Completion:
    async def go(url: str) -> Completion:
        async with OpenAIClient(f"{url}/v1") as client:
            return await client.complete(ASKED, Sampling(), adapter="policy@7")

    with serving(script) as url:
        return asyncio.run(go(url))


def test_our_server_gets_the_tokens_so_far_and_the_number_of_new_messages() -> None:
    script = ScriptedServer(answered, models=models("legos"))
    assert ask(script).prompt_ids == (1, 2, 3, 4, 9)
    (asked,) = script.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body["prompt_token_ids"] == [1, 2, 3, 4]
    assert asked.body["num_new_messages"] == 2
    assert len(asked.body["messages"]) == 4


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
