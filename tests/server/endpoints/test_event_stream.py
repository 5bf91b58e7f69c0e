"""Streams: clients that leave one, and errors within one."""

import threading
from collections.abc import Callable
from typing import Any

from fakes import FakeEngine

from legos.errors import RequestError

ASK = {"prompt": [5, 6, 7], "max_tokens": 3}

Eventually = Callable[..., bool]


def begin_soon(eventually: Eventually, server: Any, engine: FakeEngine) -> None:
    """Sample the first token of what is asked next; a stream's head comes with it."""

    def begin() -> None:
        assert eventually(lambda: len(engine.held) == 1)
        server.loop.call_soon_threadsafe(engine.stream)

    threading.Thread(target=begin).start()


def test_a_client_that_leaves_a_stream_half_way_cancels(eventually: Eventually, fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine) as server, server.http() as http:
        body = {**ASK, "stream": True}
        begin_soon(eventually, server, engine)
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert not engine.cancelled
        assert eventually(lambda: len(engine.cancelled) == 1)
        left = 'legos_hung_up_total{route="/v1/completions"} 1.0'
        assert eventually(lambda: left in http.get("/metrics").text)


def test_an_error_in_a_stream_is_an_event(eventually: Eventually, fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine) as server, server.http() as http:
        begin_soon(eventually, server, engine)
        with http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert '"text"' in next(lines)
            ((number, _, deliver),) = engine.held
            failure = RequestError("broken half way")
            server.loop.call_soon_threadsafe(deliver, [(number, failure)])
            rest = "\n".join(lines)
        assert "broken half way" in rest
        assert "[DONE]" not in rest
