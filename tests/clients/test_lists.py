"""Lists of requests: what travels together, and what happens to one that fails."""

import asyncio
from collections.abc import Sequence

import pytest

from legos.clients.lists import LISTED, LISTED_TOKENS, RequestLists
from legos.errors import EndpointError, RequestError


class Server:
    """Answers an item with twice its value; refuses lists with 13, and fails at 99."""

    def __init__(self) -> None:
        self.lists: list[tuple[str, list[int]]] = []
        self.cancelled = 0
        self.go = asyncio.Event()
        self.go.set()

    async def send(self, query: str, items: Sequence[int]) -> list[int]:
        self.lists.append((query, list(items)))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if 13 in items:
            raise RequestError("13 is refused")
        if 99 in items:
            raise EndpointError("it is down")
        if 77 in items:
            raise ZeroDivisionError("a bug")
        return [2 * item for item in items]


def test_requests_of_one_turn_that_ask_for_the_same_travel_together() -> None:
    async def go() -> None:
        server = Server()
        lists = RequestLists(server.send)
        asked = [("policy", 100 + n, 3) for n in range(LISTED + 1)]
        asked += [("old", 7, 3), ("policy", 8, LISTED_TOKENS + 1), ("policy", 9, LISTED_TOKENS + 1)]
        calls = [lists.ask(query, n, max_tokens=most) for query, n, most in asked]
        assert await asyncio.gather(*calls) == [2 * n for _, n, _ in asked]
        assert [(query, len(items)) for query, items in server.lists] == [
            ("policy", LISTED),
            ("policy", 1),
            ("old", 1),
            ("policy", 1),
            ("policy", 1),
        ]

    asyncio.run(go())


def test_only_the_refused_request_of_a_list_fails_and_a_failed_list_fails_all() -> None:
    async def go() -> None:
        lists = RequestLists(Server().send)
        asked = [lists.ask("policy", item, max_tokens=1) for item in (1, 13, 2)]
        first, refused, last = await asyncio.gather(*asked, return_exceptions=True)
        assert (first, last) == (2, 4)
        assert isinstance(refused, RequestError)
        asked = [lists.ask("policy", item, max_tokens=1) for item in (1, 99)]
        assert all(
            isinstance(found, EndpointError)
            for found in await asyncio.gather(*asked, return_exceptions=True)
        )
        with pytest.raises(ZeroDivisionError):  # which nobody expects, and nobody waits for
            await lists.ask("policy", 77, max_tokens=1)

    asyncio.run(go())


def test_a_list_is_aborted_when_nobody_waits_for_it() -> None:
    async def go() -> None:
        server = Server()
        server.go.clear()
        lists = RequestLists(server.send)
        first, second = (asyncio.create_task(lists.ask("policy", n, max_tokens=1)) for n in (1, 2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        assert server.cancelled == 0
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await asyncio.sleep(0.01)
        assert server.cancelled == 1

    asyncio.run(go())
