"""What other servers send: every form of an answer is read."""

import asyncio
import json
from typing import Any

import pytest
from scripted_server import HttpAnswer, ScriptedServer, serving

from legos.clients.openai import OpenAIClient
from legos.errors import EndpointError, RequestError
from legos.records.message import Completion, Message, Sampling

ASK = (Message("user", "hello"),)
OURS = {"data": [{"id": "policy", "owned_by": "legos"}]}


async def ask(url: str, sampling: Sampling | None = None, **options: Any) -> Completion:
    async with OpenAIClient(f"{url}/v1", **options) as client:
        return await client.complete(ASK, sampling or Sampling())


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"choices": [{"index": None, "message": {"content": "hi"}}]},
        {"choices": [{"message": {"content": "hi", "reasoning_content": {"text": "x"}}}]},
        {"choices": [{"message": {"content": [{"type": "text", "text": "hi"}, {"type": "x"}]}}]},
    ],
)
def test_every_form_of_an_answer_is_read(change: Any) -> None:
    answer = {"model": "judge", "choices": [{"message": {"content": "hi"}}], **change}
    models = {"data": [{"id": "judge", "owned_by": None}]}
    with serving(ScriptedServer(lambda asked: HttpAnswer(answer), models=models)) as url:
        assert asyncio.run(ask(url)).text == "hi"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"x": 1}', '{"x": 1}'), ({"x": 1}, '{"x": 1}'), (None, "{}"), ("", "{}")],
)
def test_arguments_of_a_call_are_read_as_text_and_as_an_object(arguments: Any, text: str) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    answer = {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}
    tools = json.dumps([{"type": "function", "function": {"name": "add"}}])
    with serving(ScriptedServer(lambda asked: HttpAnswer(answer))) as url:
        said = asyncio.run(ask(url, Sampling(tools=tools), dialect="openai", model="judge"))
    (found,) = said.tool_calls
    assert (found.name, found.arguments) == ("add", text)


def test_an_error_in_an_answer_that_reports_success_is_named() -> None:
    failed = HttpAnswer({"error": {"message": "no provider is left", "code": 502}})
    with (
        serving(ScriptedServer(lambda asked: failed)) as url,
        pytest.raises(EndpointError, match="no provider is left"),
    ):
        asyncio.run(ask(url, dialect="openai", model="judge", retries=0))


@pytest.mark.parametrize(
    ("said", "reason", "named"),
    [
        ({"refusal": "I can't help."}, "stop", "I can't help"),
        ({"refusal": "No (400) seed."}, "stop", "No .400. seed"),
        ({"refusal": "No.", "reasoning_content": "hm", "content": ""}, "stop", "No"),
        ({}, "content_filter", "content_fil"),
        ({"content": ""}, "content_filter", "content_fil"),
    ],
)
def test_a_model_that_refuses_is_not_asked_again(said: Any, reason: str, named: str) -> None:
    choice = {"message": {"content": None, **said}, "finish_reason": reason}
    script = ScriptedServer(lambda asked: HttpAnswer({"choices": [choice]}))
    with (
        serving(script) as url,
        pytest.raises(RequestError, match=f"the model refuses to answer: {named}"),
    ):
        asyncio.run(ask(url, dialect="openai", model="judge"))
    assert len(script.asked) == 1
