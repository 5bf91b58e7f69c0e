"""A pool of servers: least load, another server for one that fails or hangs, and its return."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from virtual_time import in_virtual_time

from legos.clients.pool import CHECK_S, ServerPool
from legos.errors import EndpointError, EngineError, NotFoundError


class Server:
    """A server that answers when it is released, or fails, or hangs like a stopped process."""

    def __init__(self, name: str = "a", *, fails: bool = False) -> None:
        self.name = name
        self.fails = fails
        self.hangs = False
        self.asked = self.cancelled = self.checked = 0
        self.go = asyncio.Event()

    async def answer(self) -> int:
        self.asked += 1
        if self.fails:
            raise EndpointError("it is down")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.asked

    async def healthy(self) -> bool:
        self.checked += 1
        return not self.fails and not self.hangs


def test_requests_go_to_the_least_busy_server_and_their_time_is_counted() -> None:
    async def go() -> None:
        servers = Server(), Server()
        pool = ServerPool(servers)
        asked = [asyncio.create_task(pool.ask(Server.answer)) for _ in range(3)]
        await asyncio.sleep(0)
        assert [server.asked for server in servers] == [2, 1]
        assert pool.seconds > 0
        for server in servers:
            server.go.set()
        await asyncio.gather(*asked)
        done = pool.seconds
        assert pool.seconds == done

    asyncio.run(go())


def test_a_conversation_returns_to_its_server_unless_that_is_busier() -> None:
    async def go() -> None:
        servers = Server(), Server()
        pool = ServerPool(servers)
        chosen: list[int] = []
        asked: list[asyncio.Task[int]] = []

        async def ask(home: int | None) -> int:
            call = pool.ask(Server.answer, home=home, chosen=chosen.append)
            asked.append(asyncio.create_task(call))
            await asyncio.sleep(0)
            return chosen[-1]

        assert await ask(1) == 1
        assert await ask(1) == 1  # one more than the other
        assert await ask(1) == 0
        for _ in range(7):
            await ask(None)
        assert [chosen.count(0), chosen.count(1)] == [5, 5]
        assert await ask(1) == 1  # 5 to 5
        assert await ask(1) == 1  # 6 to 5
        assert await ask(1) == 1  # 7 to 5: up to 7.25
        assert await ask(1) == 0  # 8 to 5
        for server in servers:
            server.go.set()
        await asyncio.gather(*asked)

    asyncio.run(go())


def test_a_server_that_is_down_keeps_no_conversation() -> None:
    async def go() -> None:
        failing, good = Server(fails=True), Server()
        good.go.set()
        pool = ServerPool((failing, good))
        for _ in range(2):
            await pool.ask(Server.answer, home=0)
        assert (failing.asked, good.asked) == (1, 2)

    asyncio.run(go())


def test_another_server_answers_for_one_that_fails_and_none_ends_the_run() -> None:
    async def go() -> None:
        failing, good = Server(fails=True), Server()
        good.go.set()
        pool = ServerPool([failing, good])
        assert await pool.ask(Server.answer) == 1
        assert await pool.ask(Server.answer) == 2
        assert (failing.asked, good.asked) == (1, 2)
        good.fails = True
        with pytest.raises(EngineError, match="it is down; it is down"):
            await pool.ask(Server.answer)
        good.fails = False
        assert await pool.ask(Server.answer) == 4

    asyncio.run(go())


def virtually(story: Coroutine[Any, Any, None]) -> None:
    in_virtual_time(story)


def test_requests_at_a_server_that_hangs_go_elsewhere_until_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        stopped, good = Server("stopped"), Server("good")
        good.go.set()
        stopped.hangs = True
        pool = ServerPool([stopped, good])
        clock = asyncio.get_running_loop().time
        began = clock()
        assert await asyncio.gather(*(pool.ask(Server.answer) for _ in range(4))) == [4, 1, 2, 3]
        assert CHECK_S <= clock() - began < CHECK_S + 0.1
        assert (stopped.asked, stopped.cancelled) == (1, 1)
        await pool.ask(Server.answer)
        assert stopped.asked == 1
        stopped.hangs = False
        stopped.go.set()
        await asyncio.sleep(CHECK_S + 0.1)
        await pool.ask(Server.answer)
        assert stopped.asked == 2

    with caplog.at_level(logging.WARNING):
        virtually(go())
    assert caplog.messages == [
        "stopped does not answer (1 requests wait there)",
        "stopped answers again (0 requests wait there)",
    ]


def test_a_server_that_fails_a_request_is_reported_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        failing, good = Server("failing", fails=True), Server("good")
        good.go.set()
        pool = ServerPool([failing, good])
        for _ in range(2):
            await pool.ask(Server.answer)
        failing.fails = False
        await asyncio.sleep(CHECK_S + 0.1)

    with caplog.at_level(logging.WARNING):
        virtually(go())
    assert caplog.messages == [
        "failing fails: it is down (1 requests wait there)",
        "failing answers again (0 requests wait there)",
    ]


def test_a_slow_answer_of_a_healthy_server_and_of_the_only_one_is_waited_for() -> None:
    async def go(*servers: Server) -> None:
        pool = ServerPool(servers)
        asked = asyncio.create_task(pool.ask(Server.answer))
        await asyncio.sleep(100)
        assert pool.computing is not servers[0].hangs
        servers[0].go.set()
        assert await asked == 1
        assert servers[0].cancelled == 0
        assert servers[0].checked == pytest.approx(100 / CHECK_S, abs=1)

    virtually(go(Server(), Server()))
    only = Server()
    only.hangs = True
    virtually(go(only))


@pytest.mark.parametrize("count", [1, 2])
def test_requests_fail_once_every_server_has_been_silent_for_long(count: int) -> None:
    async def go() -> None:
        servers = [Server() for _ in range(count)]
        for server in servers:
            server.hangs = True
        pool = ServerPool(servers, silent_s=600)
        asked = [asyncio.create_task(pool.ask(Server.answer)) for _ in servers]
        await asyncio.sleep(CHECK_S / 2)
        assert pool.computing
        await asyncio.sleep(500)
        assert not pool.computing
        assert not any(one.done() for one in asked)
        for one in asked:
            with pytest.raises(EngineError, match=r"answered nothing for 600 s.*resume the run"):
                await one
        assert asyncio.get_running_loop().time() < 600 + 5 * CHECK_S
        for server in servers:
            server.hangs = False
            server.go.set()
        await asyncio.sleep(2 * CHECK_S)
        assert await pool.ask(Server.answer)

    virtually(go())


def test_a_cancelled_request_is_not_sent_elsewhere() -> None:
    async def go() -> None:
        servers = Server(), Server()
        pool = ServerPool(servers)
        asked = asyncio.create_task(pool.ask(Server.answer))
        await asyncio.sleep(0.1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.sleep(2 * CHECK_S)
        assert [server.asked for server in servers] == [1, 0]
        assert [server.checked for server in servers] == [0, 0]

    virtually(go())


def test_what_a_server_lacks_is_asked_of_another_one() -> None:
    class Lacking(Server):
        async def answer(self) -> int:
            self.asked += 1
            raise NotFoundError("adapter 'policy-1' is not live")

    async def go() -> None:
        lacking, has = Lacking("a"), Server("b")
        has.go.set()
        pool = ServerPool((lacking, has))
        for number in range(1, 5):
            assert await pool.ask(lambda one: one.answer()) == number
        assert lacking.asked >= 2  # it has not failed, and may have got it since
        for other in (Lacking("c"), Server("c", fails=True)):
            with pytest.raises(NotFoundError, match="'policy-1' is not live"):
                await ServerPool((lacking, other)).ask(lambda one: one.answer())

    asyncio.run(go())
