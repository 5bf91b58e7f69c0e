"""Send requests to a server as lists of those that come in one turn and may travel together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from legos.errors import RequestError

__all__ = ["LISTED", "LISTED_TOKENS", "RequestLists"]

LISTED = 64  # requests of one list
LISTED_TOKENS = 64  # a request for more tokens travels alone


QueryT = TypeVar("QueryT")
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


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
        self._outbox: dict[tuple[QueryT, bool], list[tuple[ItemT, asyncio.Future[AnswerT]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

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
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        if not self._outbox:
            loop.call_soon(self._flush)
        key = query, max_tokens <= LISTED_TOKENS
        self._outbox.setdefault(key, []).append((item, answer))
        return await answer

    def _flush(self) -> None:
        """Send what has come in this turn, as lists."""
        outbox, self._outbox = self._outbox, {}
        for (query, short), asked in outbox.items():
            size = LISTED if short else 1
            waited = [(item, answer) for item, answer in asked if not answer.done()]
            for start in range(0, len(waited), size):
                self._start(query, waited[start : start + size])

    def _start(
        self, query: QueryT, asked: Sequence[tuple[ItemT, "asyncio.Future[AnswerT]"]]
    ) -> None:
        """Send one list; it is aborted when nobody waits for any of its answers."""
        call = asyncio.get_running_loop().create_task(self._call(query, asked))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

        def ended(_: "asyncio.Future[AnswerT]") -> None:
            if all(answer.cancelled() for _, answer in asked):
                call.cancel()

        for _, answer in asked:
            answer.add_done_callback(ended)

    async def _call(
        self, query: QueryT, asked: Sequence[tuple[ItemT, "asyncio.Future[AnswerT]"]]
    ) -> None:
        """Send one list, and pass its answers on, or the error to each."""
        try:
            found = await self._send(query, [item for item, _ in asked])
        except Exception as error:  # raised where the requests were made
            if isinstance(error, RequestError) and len(asked) > 1:
                for each in asked:  # so that only the refused one fails
                    self._start(query, [each])
                return
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), one in zip(asked, found, strict=True):
                if not answer.done():
                    answer.set_result(one)
