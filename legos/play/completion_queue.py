"""Many questions at once without a coroutine for each: completions arrive in the order they end."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from legos.errors import PlayCancelledError
from legos.protocols import BatchClient, Seat
from legos.records.message import Completion, Prompt, Sampling

__all__ = ["Ask", "CompletionQueue"]

Done = Callable[[Completion | Exception], Any]
K = TypeVar("K")


class Ask:
    """A question to a seat that can be asked many times, with a seed each."""

    def __init__(self, seat: Seat, prompt: Prompt, sampling: Sampling) -> None:
        """Prepare a question.

        Args:
            seat: the seat to ask.
            prompt: the prompt.
            sampling: sampling parameters; each time the question is asked it gets another seed.

        Raises:
            RequestError: the request cannot be served.
        """
        self.seat = seat
        self._prompt = prompt
        self._sampling = sampling
        client: Any = seat.client
        self._client: BatchClient | None = client if hasattr(client, "prepare") else None
        self._prepared: Any = None
        if self._client is not None:
            self._prepared = self._client.prepare(prompt, sampling, adapter=seat.adapter)

    def begin(self, seed: int, done: Done) -> tuple[Callable[[int], object], int]:
        """Ask in the running event loop.

        Args:
            seed: seed of the draws.
            done: called with the completion, or the error, unless the question was ended.

        Returns:
            A function that ends the question, and the number to call it with.
        """
        if self._client is None or self._prepared is None:
            return self._begin_task(seed, done), 0
        return self._client.cancel, self._client.begin(self._prepared, seed, done)

    def _begin_task(self, seed: int, done: Done) -> Callable[[int], object]:
        """Ask a client that has no callbacks."""

        async def answer() -> Completion:
            sampling, adapter = replace(self._sampling, seed=seed), self.seat.adapter
            return await self.seat.client.complete(self._prompt, sampling, adapter=adapter)

        def finish(task: "asyncio.Task[Completion]") -> None:
            if task.cancelled():
                done(PlayCancelledError("the client cancelled its own answer"))
            elif (error := task.exception()) is None:
                done(task.result())
            elif isinstance(error, Exception):
                done(error)

        def end(_: int) -> None:
            task.remove_done_callback(finish)
            task.cancel()

        task = asyncio.get_running_loop().create_task(answer())
        task.add_done_callback(finish)
        return end


class CompletionQueue(Generic[K]):
    """Asks questions, and hands out the answers.

    All answers that arrive in one turn of the event loop wake the reader once.
    """

    def __init__(self) -> None:
        """Make an empty queue, in the event loop that will read it."""
        self._arrived: list[tuple[K, Completion | Exception]] = []
        self._asked: dict[K, tuple[Callable[[int], object], int]] = {}  # what ends each question
        self._reader: asyncio.Future[None] | None = None

    def ask(self, key: K, ask: Ask, seed: int) -> None:
        """Ask a question.

        Args:
            key: what the answer is handed out with; no other question with it may be waiting.
            ask: the question.
            seed: seed of the draws.
        """
        self._asked[key] = ask.begin(seed, partial(self._answered, key))

    def cancel(self, key: K) -> None:
        """End a question; it will not be answered. Nothing happens if it was answered already."""
        if key in self._asked:
            end, number = self._asked.pop(key)
            end(number)

    async def next(self) -> list[tuple[K, Completion | Exception]]:
        """Wait until something has arrived, and return all of it."""
        if not self._arrived:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        arrived, self._arrived = self._arrived, []
        return arrived

    def _answered(self, key: K, answer: Completion | Exception) -> None:
        del self._asked[key]
        self._arrived.append((key, answer))
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
