"""A pool of servers: least load, another server for one that fails, and the time of waiting."""

import asyncio

import pytest

from legos.clients.pool import ServerPool
from legos.errors import EndpointError, EngineError


class Server:
    """A server that answers when it is released, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.asked = 0
        self.go = asyncio.Event()

    async def answer(self) -> int:
        self.asked += 1
        if self.fails:
            raise EndpointError("it is down")
        await self.go.wait()
        return self.asked


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
