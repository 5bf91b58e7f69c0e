"""Bodies that are sent in pieces."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from scripted_server import HttpAnswer, ScriptedServer, serving

from legos.clients import transport
from legos.clients.transport import Transport


def test_a_large_body_is_sent_in_pieces_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    content, sent = bytes(range(250)) * 4, list[int]()
    pieces = transport._pieces

    async def counted(body: bytes) -> AsyncGenerator[bytes]:
        async for piece in pieces(body):
            sent.append(len(piece))
            yield piece

    monkeypatch.setattr(transport, "_pieces", counted)
    monkeypatch.setattr(transport, "PIECE_BYTES", 400)

    async def upload(url: str) -> bytes:
        headers = {"content-type": "application/octet-stream"}
        async with aclosing(Transport(url, api_key=None, timeout_s=60.0, retries=1)) as sender:
            return await sender.request("POST", "/x", bytes, content=content, headers=headers)

    answers = [HttpAnswer({}, 503, [("retry-after", "0")]), HttpAnswer({})]
    script = ScriptedServer(lambda asked: answers.pop(0))
    with serving(script) as url:
        assert asyncio.run(upload(url)) == b"{}"
    assert [asked.body for asked in script.asked] == [content] * 2
    assert {asked.headers["content-length"] for asked in script.asked} == {"1000"}
    assert sent == [400, 400, 200] * 2
