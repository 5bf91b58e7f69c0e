"""A score ends with its client and with the server; what cannot be scored is refused."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from fakes import FakeEngine

BODY: Mapping[str, Any] = {"prompts": [{"prompt": [5, 6], "choices": [[7], [8]]}]}


class Scoring(FakeEngine):
    """An engine whose scores never come."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Future[Any]] = []

    def score(self, *args: Any, **options: Any) -> Any:
        self.scores.append(Future())
        return self.scores[-1]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_score_that_is_no_number_is_an_error(fake: Any, value: float) -> None:
    engine = Scoring()
    engine.score = lambda *_, **__: answered([[-1.0, value]])
    with fake(engine) as server, server.http() as http:
        answer = http.post("/v1/score", json=BODY)
    assert answer.status_code == 503
    assert "a score is no number" in answer.json()["error"]["message"]


def answered(scores: list[list[float]]) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(scores)
    return future


def test_a_client_that_leaves_ends_its_score(fake: Any, eventually: Callable[..., bool]) -> None:
    engine = Scoring()
    data = json.dumps(BODY).encode()
    with fake(engine) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
            )
            assert eventually(lambda: len(engine.scores) == 1)
        assert eventually(engine.scores[0].cancelled)


def asked_aside(server: Any) -> tuple[threading.Thread, list[int]]:
    """A thread that asks for a score, and the statuses that it gets."""
    statuses: list[int] = []

    def ask() -> None:
        with server.http() as http:
            statuses.append(http.post("/v1/score", json=BODY).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, statuses


def test_the_end_of_the_server_ends_a_score(fake: Any, eventually: Callable[..., bool]) -> None:
    engine = Scoring()
    with fake(engine, drain_s=0.2) as server:
        asking, statuses = asked_aside(server)
        assert eventually(lambda: len(engine.scores) == 1)
        began = time.monotonic()
        server.stop()
        asking.join(10)
    assert statuses == [503]
    assert time.monotonic() - began < 5
    assert engine.scores[0].cancelled()


def test_the_scores_of_a_run_have_no_time_limit(fake: Any, eventually: Callable[..., bool]) -> None:
    engine = Scoring()
    texts = {"prompts": [{"messages": [{"role": "user", "content": "hi"}], "choices": ["a"]}]}
    with fake(engine, request_timeout_s=1.0) as server, server.http() as http:
        asking, statuses = asked_aside(server)
        assert eventually(lambda: len(engine.scores) == 1)
        assert http.post("/v1/score", json=texts).status_code == 504
        engine.scores[0].set_result([[-1.0, -2.0]])
        asking.join(10)
    assert statuses == [200]


@pytest.mark.parametrize("end_token_ids", [[10**30], [100_000], [-7]])
def test_an_end_outside_the_vocabulary_is_refused(served: Any, end_token_ids: list[int]) -> None:
    prompt = {"prompt": [1, 20], "choices": [[30], [30, 31]]}
    with served.http() as http:
        answer = http.post("/v1/score", json={"prompts": [prompt], "end_token_ids": end_token_ids})
    assert answer.status_code == 400
    assert f"token {end_token_ids[0]} cannot end an answer" in answer.json()["error"]["message"]


def test_by_token_each_token_of_the_choice_has_its_score(served: Any) -> None:
    prompt, choice = [1, 20], [30, 31, 32]
    with served.http() as http:

        def scores(body: dict[str, Any]) -> Any:
            answer = http.post("/v1/score", json={"end_token_ids": [], **body})
            return answer.json()["scores"] if answer.is_success else answer.json()["error"]

        tokens = [{"prompt": prompt, "choices": [choice]}]
        (by_token,) = scores({"prompts": tokens, "by_token": True})
        (whole,) = scores({"prompts": tokens})
        chat = {"messages": [{"role": "user", "content": "a"}], "choices": ["1"]}
        refused = scores({"prompts": [chat], "by_token": True})
        several = scores({"prompts": [{"prompt": prompt, "choices": [[3], [4]]}], "by_token": True})
    assert len(by_token) == 3
    assert sum(by_token) == pytest.approx(whole[0], abs=1e-5)
    assert "as token ids" in refused["message"]
    assert "give each prompt one answer" in several["message"]


def test_choices_of_token_ids_are_as_long_as_texts_may_be(fake: Any) -> None:
    def score(http: Any, *choices: list[int], **options: Any) -> Any:
        prompts = [{"prompt": [1], "choices": each} for each in (choices, [[7]])]
        return http.post("/v1/score", json={"prompts": prompts, **options})

    with fake(FakeEngine()) as server, server.http() as http:
        assert score(http, [5] * 32_767, [6]).status_code == 200
        assert score(http, *[[6]] * 32_768).status_code == 200
        assert score(http, [5] * 32_769, by_token=True).status_code == 200  # the context bounds it
        refused = score(http, [5] * 32_768, [6])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "choices")
    assert "choices have 32769 tokens together" in refused.json()["error"]["message"]


@pytest.mark.parametrize("field", ["name", "reasoning_content"])
def test_a_field_that_a_score_leaves_out_is_refused(fake: Any, field: str) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", field: "c"}]
    asked = {"prompts": [{"messages": chat, "choices": ["1"]}]}
    with fake(FakeEngine()) as server, server.http() as http:
        refused = http.post("/v1/score", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompts")
    assert "leave them out" in refused.json()["error"]["message"]
