"""A pool of servers: least load, another server for one that fails, and the count of tokens."""

import asyncio
from collections.abc import Sequence

import pytest

from legos.clients.pool import ClientPool
from legos.data.message import Completion, Message, Prompt, Sampling
from legos.errors import EndpointError, EngineError

ASK = (Message("user", "?"),)
ANSWER = Completion(text="1", token_ids=(4, 5), logprobs=(-1.0, -1.0), versions=(3, 3))


class Server:
    """A client of a server that answers when it is released, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.asked = 0
        self.go = asyncio.Event()

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = "policy"
    ) -> Completion:
        self.asked += 1
        if self.fails:
            raise EndpointError("it is down")
        await self.go.wait()
        return ANSWER

    async def score(
        self, prompts: Sequence[object], *, adapter: str = "policy"
    ) -> list[list[float]]:
        if self.fails:
            raise EndpointError("it is down")
        return [[-1.0]]

    async def aclose(self) -> None:
        pass


def test_requests_go_to_the_least_busy_server_and_their_tokens_are_counted() -> None:
    async def go() -> None:
        servers = Server(), Server()
        pool = ClientPool(servers)
        asked = [
            asyncio.create_task(pool.complete(ASK, Sampling(), adapter=name))
            for name in ("policy", "policy@3", "old")
        ]
        await asyncio.sleep(0)
        assert [server.asked for server in servers] == [2, 1]
        assert pool.seconds > 0
        for server in servers:
            server.go.set()
        await asyncio.gather(*asked)
        assert pool.tokens == {"policy": 4, "old": 2}
        done = pool.seconds
        assert pool.seconds == done

    asyncio.run(go())


def test_another_server_answers_for_one_that_fails_and_none_ends_the_run() -> None:
    async def go() -> None:
        failing, good = Server(fails=True), Server()
        good.go.set()
        pool = ClientPool([failing, good])
        assert await pool.complete(ASK, Sampling()) == ANSWER
        assert await pool.complete(ASK, Sampling()) == ANSWER
        assert (failing.asked, good.asked) == (1, 2)
        good.fails = True
        with pytest.raises(EngineError, match="it is down; it is down"):
            await pool.score([(ASK, ("1",))])
        good.fails = False
        assert await pool.score([(ASK, ("1",))]) == [[-1.0]]

    asyncio.run(go())
