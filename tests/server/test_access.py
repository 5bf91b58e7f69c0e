"""Who is let in, how large a body may be, and what a line of the log says."""

import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from fakes import FakeEngine
from openai import OpenAI

from legos.server.options import ServerOptions

ASK = {"prompt": [5, 6, 7], "max_tokens": 3}


def test_a_key_is_asked_for(fake: Any) -> None:
    with fake(FakeEngine(), api_key="s3cret") as server, server.http() as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            refused = http.get("/v1/models", headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        for scheme in ("Bearer", "bearer", "BEARER "):
            right = {"authorization": f"{scheme} s3cret"}
            assert http.get("/v1/models", headers=right).status_code == 200
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 401
        with (
            OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


@pytest.mark.parametrize(
    ("name", "told"), [("Authorization", "several authorization headers"), ("Host", "Invalid HTTP")]
)
def test_a_header_that_counts_comes_once(fake: Any, name: str, told: str) -> None:
    lines = ["Host: localhost", "Authorization: Bearer s3cret", "Connection: close"]
    twice = [*lines, next(line for line in lines if line.startswith(name))]
    sent = "\r\n".join(["GET /v1/models HTTP/1.1", *twice, "", ""]).encode()
    with fake(FakeEngine(), api_key="s3cret") as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=30) as wire:
            wire.sendall(sent)
            answer = b"".join(iter(lambda: wire.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert told.encode() in answer


def test_on_loopback_other_names_are_refused(fake: Any) -> None:
    hosts = ServerOptions.for_host("127.0.0.1", api_key=None).allowed_hosts
    with fake(FakeEngine(), allowed_hosts=hosts) as server, server.http() as http:
        for host in ("evil.example", "evil.example:80", "localhost.evil", "[::1", "a:localhost"):
            refused = http.get("/health", headers={"host": host})
            assert refused.status_code == 403
            error = refused.json()["error"]
            assert error["type"] == "permission_error"
            assert repr(host) in error["message"]
            assert "answers to 127.0.0.1, ::1, localhost" in error["message"]
        for host in ("localhost:8000", "LocalHost", "127.0.0.1", "[::1]:80"):
            assert http.get("/health", headers={"host": host}).status_code == 200


def test_web_pages_of_others_cannot_ask(fake: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        simple = {"origin": "https://evil.example", "content-type": "text/plain"}
        body = b'{"prompt": [5], "max_tokens": 1}'
        for path in ("/v1/completions", "/v1/engine/generate", "/adapters/load"):
            refused = http.post(path, content=body, headers=simple)
            assert refused.status_code == 415, path
        answer = http.post("/v1/completions", json=ASK, headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(fake: Any, *, chunked: bool) -> None:
    with fake(FakeEngine(), max_body_bytes=1000) as server, server.http() as http:
        body = b'{"prompt": "' + b"x" * 2000 + b'"}'
        content = iter([body[:700], body[700:]]) if chunked else body
        answer = http.post(
            "/v1/completions", content=content, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413
        assert ("connection" in answer.headers) is chunked  # such a body may never end
        assert "1000 bytes" in answer.json()["error"]["message"]
        assert http.post("/v1/completions", json=ASK).status_code == 200


def test_a_client_that_reads_after_sending_gets_the_refusal_of_a_large_body(fake: Any) -> None:
    with fake(FakeEngine(), max_adapters=0) as server, server.http() as http:
        for path, status in (("/v1/completions", 413), ("/adapters/load?version=1&name=a", 409)):
            kind = {"content-type": "application/octet-stream"}
            answer = http.post(path, content=bytes(30_000_000), headers=kind)
            assert answer.status_code == status
            assert (answer.headers.get("x-should-retry") == "false") is (status == 409)


@pytest.mark.parametrize("log_prompts", [False, True])
def test_prompts_are_logged_only_where_that_is_asked_for(
    fake: Any, caplog: pytest.LogCaptureFixture, *, log_prompts: bool
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        fake(FakeEngine(), log_prompts=log_prompts) as server,
        server.http() as http,
    ):
        secret = {"messages": [{"role": "user", "content": "xyzzy"}], "max_tokens": 4}
        for body in (secret, {**secret, "stream": True}, {**secret, "bad": "xyzzy"}):
            http.post("/v1/chat/completions", json=body)
        http.post("/v1/completions", json={"prompt": "xyzzy"})
    ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("http"))
    assert "/v1/chat/completions" in ours
    assert ("xyzzy" in ours) == log_prompts


def test_the_servers_key_may_begin_as_that_of_a_seat(fake: Any) -> None:
    with fake(FakeEngine(), api_key="seat-s3cret") as server, server.http() as http:
        right = {"authorization": "Bearer seat-s3cret"}
        assert http.get("/v1/models", headers=right).status_code == 200
        wrong = http.get("/v1/models", headers={"authorization": "Bearer seat-other"})
        assert wrong.json()["error"]["code"] == "play_ended"
