"""What other servers send: every form of a stream and of an answer is read."""

import asyncio
import json
from typing import Any

import pytest
from scripted_server import HttpAnswer, ScriptedServer, serving

from legos.clients.openai import OpenAIClient
from legos.errors import EndpointError
from legos.records.message import Completion, Message, Sampling

ASK = (Message("user", "hello"),)
OURS = {"data": [{"id": "policy", "owned_by": "legos"}]}


async def ask(url: str, sampling: Sampling | None = None, **options: Any) -> Completion:
    async with OpenAIClient(f"{url}/v1", **options) as client:
        return await client.complete(ASK, sampling or Sampling())


STREAM = [("content-type", "text/event-stream; charset=utf-8")]


def event(text: str) -> bytes:
    delta = {"delta": {"content": text}}
    return f"data: {json.dumps({'choices': [delta]}, ensure_ascii=False)}\n\n".encode()


def streamed(body: bytes, headers: Any = STREAM) -> list[str]:
    """The pieces of an answer that a server streams."""

    async def read(url: str) -> list[str]:
        async with OpenAIClient(f"{url}/v1") as client:
            return [piece async for piece in client.stream(ASK, Sampling())]

    script = ScriptedServer(lambda asked: HttpAnswer(body, 200, headers), models=OURS)
    with serving(script) as url:
        pieces = asyncio.run(read(url))
    assert script.asked[0].body["stream"] is True
    return pieces


def test_a_stream_is_read_piece_by_piece() -> None:
    body = b": ping\n\n" + event("a") + event("b c") + b"data: [DONE]\n\n"
    assert streamed(body) == ["a", "b c"]
    with pytest.raises(EndpointError, match="died"):
        streamed(b'data: {"error": {"message": "died"}}\n\n')


@pytest.mark.parametrize("text", ["a\u2028b", "\u2029", "\x85c", "x\x0bx", "\x0c", "\x1c\x1d\x1e"])
def test_a_stream_is_split_at_its_own_line_ends_alone(text: str) -> None:
    assert streamed(event(text) + b"data: [DONE]\n\n") == [text]


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "body",
    [
        event("hi").replace(b"data: ", b"data:") + b"data:[DONE]\n\n",
        event("hi") + b"data: [DONE] \n\n",
        event("hi").replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
        b": comment\n:\nid: 1\nretry: 100\n\n" + event("hi") + b": end\n\ndata: [DONE]\n\n",
        b"event: message\n" + event("hi") + DONE,
        event("hi") + b'data: {"choices": []}\n\ndata: {"choices": null, "usage": {}}\n\n' + DONE,
        event("hi")
        + b'data: {"choices": [{"delta": null, "index": null}], "model": null}\n\n'
        + DONE,
        b'data: {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}}]}\n\n'
        + event("hi")
        + DONE,
        b'data: {"choices":\ndata: [{"delta": {"content": "hi"}}]}\n\n' + DONE,
        b'data: {"choices": [{"delta": {"content": [{"type": "text", "text": "hi"}]}}]}\n\n' + DONE,
    ],
)
def test_every_form_of_a_stream_is_read(body: bytes) -> None:
    assert streamed(body) == ["hi"]


def test_a_stream_is_read_under_every_content_type() -> None:
    for headers in ([], [("content-type", "text/plain")]):
        assert streamed(event("hi") + b"data: [DONE]\n\n", headers) == ["hi"]


def test_a_server_that_does_not_stream_gives_its_whole_answer() -> None:
    whole = json.dumps({"choices": [{"message": {"content": "hi"}}]}).encode()
    assert streamed(whole, [("content-type", "application/json")]) == ["hi"]


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
    [('{"x": 1}', '{"x": 1}'), ({"x": 1}, '{"x":1}'), (None, "{}"), ("", "{}")],
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
