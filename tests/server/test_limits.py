"""What a server lets in: keys, hosts, sizes, times, queues; who leaves, and how it ends."""

import logging
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from legos.chat.tokenizer import ChatTokenizer
from legos.errors import ConfigError, EngineError, RequestError
from legos.server.limits import Limits
from legos.testing import FakeEngine

ASK = {"prompt": [5, 6, 7], "max_tokens": 3}


def eventually(condition: Callable[[], bool], *, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def begin_soon(server: Any, engine: FakeEngine) -> None:
    """Sample the first token of what is asked next; a stream's head comes with it."""

    def begin() -> None:
        assert eventually(lambda: len(engine.held) == 1)
        server.loop.call_soon_threadsafe(engine.stream)

    threading.Thread(target=begin).start()


def test_a_key_is_asked_for(fake: Any) -> None:
    with fake(FakeEngine(), api_key="s3cret") as server, server.http() as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            refused = http.get("/v1/models", headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer s3cret"}
        assert http.get("/v1/models", headers=right).status_code == 200
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 401
        with (
            OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_a_path_that_is_not_there_names_the_page_of_those_that_are(fake: Any) -> None:
    with fake(FakeEngine()) as served, served.http() as http:
        gone, got = http.get("/v1/chat/completion"), http.get("/v1/chat/completions")
    assert (gone.status_code, got.status_code) == (404, 405)
    told = gone.json()["error"]["message"]
    assert told == "there is no GET /v1/chat/completion here; /docs lists what there is"
    assert got.json()["error"]["message"].startswith("there is no GET /v1/chat/completions here;")
    assert got.headers["allow"] == "POST"


def test_others_than_loopback_need_a_key() -> None:
    with pytest.raises(ConfigError, match="LEGOS_API_KEY"):
        Limits.for_host("0.0.0.0", api_key=None)
    assert Limits.for_host("0.0.0.0", api_key="k").allowed_hosts == ()
    assert "localhost" in Limits.for_host("127.0.0.1", api_key=None).allowed_hosts


def test_on_loopback_other_names_are_refused(fake: Any) -> None:
    hosts = Limits.for_host("127.0.0.1", api_key=None).allowed_hosts
    with fake(FakeEngine(), allowed_hosts=hosts) as server, server.http() as http:
        assert http.get("/health", headers={"host": "evil.example"}).status_code == 400
        for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
            assert http.get("/health", headers={"host": host}).status_code == 200


def test_web_pages_of_others_cannot_ask(fake: Any) -> None:
    with fake(FakeEngine()) as server, server.http() as http:
        simple = {"origin": "https://evil.example", "content-type": "text/plain"}
        body = b'{"prompt": [5], "max_tokens": 1}'
        assert http.post("/v1/completions", content=body, headers=simple).status_code == 415
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
        assert "1000 bytes" in answer.json()["error"]["message"]
        assert http.post("/v1/completions", json=ASK).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_request_ends(fake: Any, *, stream: bool) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine, request_timeout_s=0.2) as server, server.http() as http:
        answer = http.post("/v1/completions", json={**ASK, "stream": stream})
        assert answer.status_code == 504
        assert answer.json()["error"]["type"] == "timeout_error"
        assert eventually(lambda: len(engine.cancelled) == 1)


def test_a_full_queue_says_when_to_come_back(fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with (
        fake(engine, max_running=1, max_queue=1) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        asked = [pool.submit(http.post, "/v1/completions", json=ASK) for _ in range(2)]
        assert eventually(lambda: len(engine.held) == 2)
        refused = http.post("/v1/completions", json=ASK)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        with (
            OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.RateLimitError),
        ):
            client.completions.create(model="base", **ASK)
        server.loop.call_soon_threadsafe(engine.release)
        assert [answer.result().status_code for answer in asked] == [200, 200]
        engine._hold = False
        assert http.post("/v1/completions", json=ASK).status_code == 200


def test_the_queue_counts_completions_and_not_requests(fake: Any) -> None:
    """One request of many completions is refused by itself, and where others leave no place."""
    engine = FakeEngine(hold=True)
    with (
        fake(engine, max_running=4, max_queue=6) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        refused = http.post("/v1/completions", json={"prompt": [[5]] * 6, "n": 2})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert "asks for 12 completions" in refused.json()["error"]["message"]
        asked = pool.submit(http.post, "/v1/completions", json={**ASK, "n": 8})
        assert eventually(lambda: len(engine.held) == 8)
        many = http.post("/v1/completions", json={**ASK, "n": 3})
        assert (many.status_code, many.json()["error"]["code"]) == (429, "queue_full")
        few = pool.submit(http.post, "/v1/completions", json=ASK)
        assert eventually(lambda: len(engine.held) == 9)
        server.loop.call_soon_threadsafe(engine.release)
        assert [answer.result().status_code for answer in (asked, few)] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels(fake: Any, *, stream: bool) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine) as server, server.http() as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json={**ASK, "n": 2, "stream": stream}, timeout=0.3)
        assert eventually(lambda: len(engine.cancelled) == 2)
        assert not engine.held
        assert eventually(lambda: server.service.metrics.running._value.get() == 0)


def test_a_client_that_leaves_a_stream_half_way_cancels(fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine) as server, server.http() as http:
        body = {**ASK, "stream": True}
        begin_soon(server, engine)
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert not engine.cancelled
        assert eventually(lambda: len(engine.cancelled) == 1)


def test_a_client_that_leaves_frees_its_row_of_the_real_engine(served: Any, engine: Any) -> None:
    body = {"prompt": [1, 20], "max_tokens": 1900, "temperature": 5.0, "model": "policy"}
    with served.http() as http:
        for _ in range(20):  # until one does not end by itself at once
            try:
                http.post("/v1/completions", json={**body, "n": 8}, timeout=0.05)
            except httpx.ReadTimeout:
                break
        else:
            pytest.fail("every answer came within 50 ms")
    assert eventually(lambda: engine.stats()["requests_running"] == 0, seconds=2)


def test_an_engine_that_fails_is_503_and_health_says_so(fake: Any) -> None:
    class Dead(FakeEngine):
        def stats(self) -> Any:
            raise EngineError("its thread has died")

    def answer(_: object) -> Any:
        raise EngineError("the engine died")

    with fake(Dead(answer)) as server, server.http() as http:
        refused = http.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert "the engine died" in refused.json()["error"]["message"]
        health = http.get("/health")
        assert health.status_code == 503
        assert health.json()["reasons"] == ["its thread has died"]
        assert "legos_engine_up 0.0" in http.get("/metrics").text


def test_an_error_in_a_stream_is_an_event(fake: Any, tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine) as server, server.http() as http:
        begin_soon(server, engine)
        with http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert '"text"' in next(lines)
            ((number, _, deliver),) = engine.held
            failure = RequestError("broken half way")
            server.loop.call_soon_threadsafe(deliver, [(number, failure)])
            rest = "\n".join(lines)
        assert "broken half way" in rest
        assert "[DONE]" not in rest


def test_an_unexpected_error_is_not_explained(fake: Any) -> None:
    def answer(_: object) -> Any:
        raise ZeroDivisionError("secret")

    with fake(FakeEngine(answer)) as server, server.http() as http:
        failed = http.post("/v1/completions", json=ASK)
        assert failed.status_code == 500
        assert "secret" not in failed.text


def test_draining_ends_what_runs_and_lets_nothing_in(fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with (
        fake(engine, drain_s=10) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(http.post, "/v1/completions", json=ASK)
        assert eventually(lambda: len(engine.held) == 1)
        server.stop()
        assert eventually(lambda: server.service.draining)
        refused = http.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert http.get("/health").json()["status"] == "draining"
        server.loop.call_soon_threadsafe(engine.release)
        assert running.result().status_code == 200
        assert running.result().json()["choices"][0]["finish_reason"] == "stop"


def test_what_takes_longer_than_the_drain_is_ended(fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with (
        fake(engine, drain_s=0.2) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(http.post, "/v1/completions", json=ASK)
        assert eventually(lambda: len(engine.held) == 1)
        server.stop()
        assert running.result().status_code == 503
    assert len(engine.cancelled) == 1


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


def test_a_port_that_is_taken_is_named(fake: Any) -> None:
    from legos.server.run import _listen

    with fake(FakeEngine()) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(ConfigError, match=f"port {port}"):
            _listen("127.0.0.1", port)


def test_threads_end_with_their_server(fake: Any) -> None:
    before = threading.active_count()
    with fake(FakeEngine()) as server, server.http() as http:
        assert http.get("/health").status_code == 200
    assert eventually(lambda: threading.active_count() <= before)


def test_small_answers_do_not_wait_for_acknowledgements(served: Any) -> None:
    """An answer goes in two pieces; without TCP_NODELAY the second comes 40 ms after the first."""
    waits: list[float] = []
    with httpx.Client(base_url=served.url) as client:
        for _ in range(30):
            started = time.perf_counter()
            assert client.get("/health").is_success
            waits.append(time.perf_counter() - started)
    assert statistics.median(waits) < 0.025
