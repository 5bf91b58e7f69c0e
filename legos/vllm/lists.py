"""Send prompts to a vLLM server as lists of those that come in one turn and ask for the same."""

import asyncio
from collections.abc import Sequence
from functools import partial

from legos.clients.busy import BusyClock
from legos.clients.transport import Transport, api_root
from legos.errors import EndpointError, EngineError, LegosError, RequestError
from legos.vllm.completions import Drawn, Query, body_of, drawn_of
from legos.vllm.live import LiveAdapters

__all__ = ["PromptLists"]

LISTED = 64  # prompts of one list
LISTED_TOKENS = 64  # a request for more tokens travels alone
CONNECTIONS = 256
REQUEST_S = 600.0  # maximum time of one answer
MOST_ABORTS, ABORTED_S = 20, 0.5  # how often a prompt is asked again, and the pause before
_Prompt = tuple[int, ...]
_Answer = tuple[Drawn, int]
"""What was sampled, and the version of the adapter that sampled it."""
_Asked = tuple[_Prompt, "asyncio.Future[_Answer]"]


class PromptLists:
    """Sends prompts to a server; all methods belong to one event loop.

    An answer of more than ``LISTED_TOKENS`` tokens would keep the others of its list waiting, so it
    travels alone.
    """

    def __init__(self, url: str, live: LiveAdapters, *, api_key: str | None) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            url: its address.
            live: the adapters that are live there.
            api_key: bearer token.
        """
        self._live = live
        self._transport = Transport(
            api_root(url),
            api_key=api_key,
            timeout_s=REQUEST_S,
            max_connections=CONNECTIONS,
            retries=1,
        )
        self._outbox: dict[Query, list[_Asked]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._clock = BusyClock()

    @property
    def seconds(self) -> float:
        """Seconds in which at least one list was at the server."""
        return self._clock.seconds

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def ask(self, query: Query, prompt: _Prompt) -> _Answer:
        """The answer to one prompt, which travels with the others of this turn.

        Raises:
            RequestError: the server refuses it.
            EngineError: the server does not come back, or keeps aborting it.
        """
        for _ in range(MOST_ABORTS):
            answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
            if not self._outbox:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outbox.setdefault(query, []).append((prompt, answer))
            drawn, version = await answer
            if drawn.finish_reason is not None:
                return drawn, version
            await asyncio.sleep(ABORTED_S)
        raise EngineError(f"the vLLM server aborted a request {MOST_ABORTS} times in a row")

    def _flush(self) -> None:
        """Send what has come in this turn, as lists."""
        outbox, self._outbox = self._outbox, {}
        for query, asked in outbox.items():
            size = LISTED if query.max_tokens <= LISTED_TOKENS else 1
            waited = [(prompt, answer) for prompt, answer in asked if not answer.done()]
            for start in range(0, len(waited), size):
                self._send(query, waited[start : start + size])

    def _send(self, query: Query, asked: Sequence[_Asked]) -> None:
        """Send one list; it is aborted when nobody waits for any of its answers."""
        call = asyncio.get_running_loop().create_task(self._call(query, asked))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

        def ended(_: "asyncio.Future[_Answer]") -> None:
            if all(answer.cancelled() for _, answer in asked):
                call.cancel()

        for _, answer in asked:
            answer.add_done_callback(ended)

    async def _call(self, query: Query, asked: Sequence[_Asked]) -> None:
        """Send one list, and pass its answers on, or the error to each."""
        prompts = [prompt for prompt, _ in asked]
        try:
            with self._clock.request():
                found, version = await self._answered(query, prompts)
        except RequestError as error:
            if len(asked) == 1:
                _fail(asked, error)
            for each in asked if len(asked) > 1 else ():  # so that only the refused one fails
                self._send(query, [each])
        except LegosError as error:
            _fail(asked, error)
        else:
            for (_, answer), drawn in zip(asked, found, strict=True):
                if not answer.done():
                    answer.set_result((drawn, version))

    async def _answered(self, query: Query, prompts: Sequence[_Prompt]) -> tuple[list[Drawn], int]:
        """The answers to a list; the server is brought back after a failure.

        Raises:
            RequestError: the server refuses the list, or no such adapter is live.
            EngineError: the server does not come back.
        """
        while True:
            with self._live.use(query.adapter) as served:
                epoch = self._live.epoch
                body = body_of(query, prompts, model=served.model)
                read = partial(drawn_of, query=query, count=len(prompts))
                try:
                    found = await self._transport.request("POST", "/completions", read, json=body)
                except EndpointError as error:
                    failure: LegosError = error
                except RequestError as error:
                    if "(404)" not in str(error):
                        raise
                    failure = error  # the server has lost the adapter
                else:
                    return found, served.version
            await self._live.recover(failure, epoch)


def _fail(asked: Sequence[_Asked], error: LegosError) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)
