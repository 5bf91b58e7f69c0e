"""What goes wrong is answered with a status and a message."""

from typing import Any

import pytest
from fakes import FakeEngine

from legos.errors import ArenaError, EngineError
from legos.records.names import MODEL_HEADER

ASK = {"prompt": [5, 6, 7], "max_tokens": 3}


def test_a_path_that_is_not_there_names_the_page_of_those_that_are(fake: Any) -> None:
    with fake(FakeEngine()) as served, served.http() as http:
        gone, got = http.get("/v1/chat/completion"), http.get("/v1/chat/completions")
    assert (gone.status_code, got.status_code) == (404, 405)
    told = gone.json()["error"]["message"]
    assert told == "there is no GET /v1/chat/completion here; /docs lists what there is"
    assert got.json()["error"]["message"].startswith("there is no GET /v1/chat/completions here;")
    assert got.headers["allow"] == "POST"


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


def test_an_unexpected_error_is_counted_and_not_explained(fake: Any) -> None:
    def answer(_: object) -> Any:
        raise ZeroDivisionError("secret")

    with fake(FakeEngine(answer)) as server:
        with server.http() as http:
            failed = http.post("/v1/completions", json=ASK)
        with server.http() as http:  # after such an error the server closes the connection
            counted = http.get("/metrics").text
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert MODEL_HEADER in failed.headers
    assert 'legos_requests_total{route="/v1/completions",status="500"} 1.0' in counted
    assert "legos_hung_up_total{" not in counted


def test_an_error_of_the_kit_that_is_not_explained_is_in_the_log(
    fake: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(_: object) -> Any:
        raise ArenaError("the arena keeps failing")

    with fake(FakeEngine(answer)) as server, server.http() as http:
        failed = http.post("/v1/completions", json=ASK)
    assert "its log has the reason" in failed.json()["error"]["message"]
    assert "the arena keeps failing" in caplog.text


def test_a_misspelt_field_is_answered_with_the_nearest_one(fake: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    asked = {
        "/v1/completions": ({**ASK, "temprature": 1}, "temprature", "'temperature'"),
        "/v1/chat/completions": ({**chat, "max_token": 1}, "max_token", "'max_tokens'"),
        "/tokenize": ({"promt": "hi"}, "promt", "'prompt'"),
    }
    with fake(FakeEngine()) as server, server.http() as http:
        for path, (body, field, near) in asked.items():
            error = http.post(path, json=body).json()["error"]
            assert error["param"] == field
            assert f"did you mean {near}?" in error["message"]
        message = {"messages": [{**chat["messages"][0], "tool_call": [1]}]}
        scored = {"prompts": [{**message, "choices": ["a"]}]}
        for path, body in (("/v1/chat/completions", message), ("/v1/score", scored)):
            told = http.post(path, json=body).json()["error"]["message"]
            assert told == "messages.0.tool_call is not known; did you mean 'tool_calls'?"
        long = http.post("/v1/completions", json={**ASK, "x" * 100_000: 1})
        assert (long.status_code, len(long.content) < 1000) == (400, True)


def test_a_prompt_that_is_too_long_is_told_its_length(fake: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "x" * 1100}]}
    asked = {
        "/v1/completions": ({"prompt": [5] * 1024}, "prompt"),
        "/v1/chat/completions": (chat, "messages"),
    }
    with fake(FakeEngine()) as server, server.http() as http:
        for path, (body, param) in asked.items():
            error = http.post(path, json=body).json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", param)
            assert "at most 1024" in error["message"]
            assert "max_tokens" not in error["message"]


def test_no_answer_repeats_a_long_name(fake: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    long = "x" * 1_000_000
    asked = [
        ("/v1/completions", {**ASK, "model": long}),
        ("/v1/completions", {**ASK, "adapter": f"base@{long}"}),
        ("/v1/completions", {**ASK, "logit_bias": {long: 1}}),
        ("/v1/chat/completions", {**chat, "chat_template_kwargs": {f"template{long}": 1}}),
        ("/v1/score", {"prompts": [{**chat, "choices": ["a"]}], "model": long}),
        ("/adapters/load", {"weights": "AAAA", "name": long, "version": 1}),
    ]
    with fake(FakeEngine()) as server, server.http() as http:
        for path, body in asked:
            answer = http.post(path, json=body)
            assert answer.status_code in (400, 404), path
            assert len(answer.content) < 10_000, path
