"""A run that is asked to stop does not wait for servers that do not answer."""

import asyncio
import logging
from concurrent.futures import Future
from typing import Any

import pytest
from fakes import FakeBackend
from virtual_time import in_virtual_time

from legos.errors import Stopped
from legos.protocols import Publisher
from legos.remote.publish.engine import EnginePublisher
from legos.run.leaving import LEAVE_S, LeavingPublisher
from legos.weights.adapter import Adapter, AdapterInfo

ADAPTER = FakeBackend().adapter()


class Silent:
    """A publisher whose servers answer after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cancelled = 0

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        await self.drop(adapter.name)
        return adapter.info

    async def drop(self, name: str) -> None:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def test_a_stop_waits_for_a_publication_for_a_second_and_no_longer() -> None:
    async def go(seconds: float) -> float:
        stopping, inner = asyncio.Event(), Silent(seconds)
        loop, publisher = asyncio.get_running_loop(), LeavingPublisher(inner, stopping)
        loop.call_later(10.0, stopping.set)
        if seconds <= 10.0 + LEAVE_S:
            assert await publisher.publish(ADAPTER) == ADAPTER.info
        else:
            with pytest.raises(Stopped):
                await publisher.publish(ADAPTER)
            assert inner.cancelled == 1
            await publisher.drop("policy")
            assert inner.cancelled == 2
        return loop.time()

    assert in_virtual_time(go(3.0))[0] == 3.0
    assert in_virtual_time(go(10.5))[0] == 10.5
    assert in_virtual_time(go(600.0))[0] == 10.0 + 2 * LEAVE_S


def test_only_servers_are_missed_where_an_adapter_is_not_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Busy:
        """An engine of this process that is in a long device call."""

        def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
            return Future()

    async def go(inner: Publisher) -> None:
        stopping = asyncio.Event()
        stopping.set()
        with pytest.raises(Stopped):
            await LeavingPublisher(inner, stopping).publish(ADAPTER)

    engine: Any = Busy()
    caplog.set_level(logging.WARNING, logger="legos.run.leaving")
    asyncio.run(go(EnginePublisher(engine)))
    assert caplog.messages == []
    in_virtual_time(go(Silent(600.0)))
    assert caplog.messages == ["policy@0 is not live: no server answers"]
