"""Send requests to a server as lists of those that come in one turn and may travel together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from legos.clients.transport import TOO_SLOW
from legos.errors import RequestError

LISTED = 64  # requests of one list
LISTED_TOKENS = 64  # a request for more tokens travels alone


QueryT = TypeVar("QueryT")
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


@dataclass(eq=False)
class _List(Generic[ItemT, AnswerT]):
    """Items that travel together."""

    items: list[ItemT]
    call: "asyncio.Task[Sequence[AnswerT]]"  # sends them when this turn of the loop is over
    waiting: int = 0  # number of callers that wait for an answer


class RequestLists(Generic[QueryT, ItemT, AnswerT]):
    """Gathers requests; all methods belong to one event loop.

    An answer of more than ``LISTED_TOKENS`` tokens would keep the others of its list waiting, so it
    travels alone.
    """

    def __init__(
        self, send: Callable[[QueryT, Sequence[ItemT]], Awaitable[Sequence[AnswerT]]]
    ) -> None:
        """Gather for a server.

        Args:
            send: sends one list; returns the answer to each item, in their order. It is cancelled
                when nobody waits for any of them.
        """
        self._send = send
        self._open: dict[tuple[QueryT, bool], _List[ItemT, AnswerT]] = {}  # not sent yet

    async def ask(self, query: QueryT, item: ItemT, *, max_tokens: int) -> AnswerT:
        """The answer to one request, which travels with the others of this turn.

        Args:
            query: what the requests of a list have in common; equal ones travel together.
            item: the rest of the request.
            max_tokens: maximum number of tokens of the answer.

        Raises:
            RequestError: the server refuses it.
            LegosError: the list was not answered, or what sending it raised.
        """
        key = query, max_tokens <= LISTED_TOKENS
        one = self._open.get(key)
        if one is None:
            items = list[ItemT]()
            call = asyncio.create_task(self._call(key, items))
            one = self._open[key] = _List(items, call)
        place = len(one.items)
        one.items.append(item)
        if len(one.items) == (LISTED if key[1] else 1):
            del self._open[key]
        one.waiting += 1
        try:
            return (await asyncio.shield(one.call))[place]
        except RequestError as error:
            if len(one.items) == 1 or isinstance(error.__cause__, TOO_SLOW):
                raise
            return (await self._send(query, [item]))[0]  # so that only the refused one fails
        finally:
            one.waiting -= 1
            if not one.waiting:
                one.call.cancel()

    async def _call(self, key: tuple[QueryT, bool], items: list[ItemT]) -> Sequence[AnswerT]:
        """Send one list, to which nothing is added from now on."""
        one = self._open.get(key)
        if one is not None and one.items is items:
            del self._open[key]
        return await self._send(key[0], items)
