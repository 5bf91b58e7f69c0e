"""A server on a port: how it starts, answers and ends."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from legos.errors import ConfigError
from legos.testing import FakeEngine

Eventually = Callable[..., bool]


def test_a_port_that_is_taken_is_named(fake: Any) -> None:
    from legos.server.listen import _listen

    with fake(FakeEngine()) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(ConfigError, match=f"port {port}"):
            _listen("127.0.0.1", port)


def test_threads_end_with_their_server(eventually: Eventually, fake: Any) -> None:
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
