"""What goes wrong is answered with a status and a message."""

from typing import Any

from legos.errors import EngineError
from legos.testing import FakeEngine

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


def test_an_unexpected_error_is_not_explained(fake: Any) -> None:
    def answer(_: object) -> Any:
        raise ZeroDivisionError("secret")

    with fake(FakeEngine(answer)) as server, server.http() as http:
        failed = http.post("/v1/completions", json=ASK)
        assert failed.status_code == 500
        assert "secret" not in failed.text
