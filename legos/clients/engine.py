"""The in-process client: messages in, completions out, straight from an engine."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import cast

from legos.chat.tokenizer import ChatTokenizer
from legos.data.choices import ChoiceNode, choice_tree
from legos.data.message import Completion, Message, Sampling
from legos.data.request import Generated, Progress, Request, Result
from legos.errors import RequestError
from legos.protocols import Engine

__all__ = ["EngineClient"]


class EngineClient:
    """Asks an engine in this process.

    What is asked within one turn of the event loop reaches the engine as one submission, so a
    thousand plays that wake together are batched together.
    """

    def __init__(self, engine: Engine, tokenizer: ChatTokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._tree = lru_cache(maxsize=4096)(self._make_tree)
        self._decode = lru_cache(maxsize=65536)(tokenizer.decode)
        self._next = 0
        self._outbox: list[tuple[int, Request]] = []
        self._futures: dict[int, asyncio.Future[Generated]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive = self._deliver  # one object: the engine tells receivers apart

    async def complete(
        self,
        prompt: Sequence[Message] | Sequence[int],
        sampling: Sampling,
        *,
        adapter: str = "policy",
    ) -> Completion:
        """Sample one completion of chat messages or token ids.

        Raises:
            RequestError: the request cannot be served.
            EngineError: the engine died or was closed.
        """
        started = time.perf_counter()
        prompt_ids = self._prompt_ids(prompt)
        tree = self._tree(sampling.choices) if sampling.choices else None
        limit = sampling.max_tokens
        if limit is None:
            if tree is None:
                raise RequestError("max_tokens is none and there are no choices; give a number")
            limit = tree.depth
        request = Request(
            prompt_ids=prompt_ids,
            max_tokens=limit,
            temperature=sampling.temperature,
            seed=sampling.seed,
            end_ids=self._tokenizer.end_ids,
            choices=tree,
            restrict=sampling.restrict,
            stops=self._stops(sampling.stop) if sampling.stop else None,
            adapter=adapter,
        )
        generated = await self._answer(request)
        return Completion(
            prompt_ids=prompt_ids,
            token_ids=generated.token_ids,
            logprobs=generated.logprobs,
            versions=generated.versions,
            text=self._text(generated.token_ids, sampling.stop),
            finish_reason=generated.finish_reason,
            legal=generated.legal,
            restricted=sampling.restrict,
            temperature=sampling.temperature,
            adapter=adapter,
            elapsed_s=time.perf_counter() - started,
        )

    async def score(
        self, prompts: Sequence[tuple[Sequence[Message], Sequence[str]]]
    ) -> list[list[float]]:
        """Log-probability (nats, temperature 1) of each choice as the whole answer to its prompt.

        Args:
            prompts: messages, and the choices after them.
        """
        encode = self._tokenizer.encode
        rows = [
            (self._tokenizer.render(tuple(messages)), [encode(choice) for choice in choices])
            for messages, choices in prompts
        ]
        scores = self._engine.score(rows, end_ids=self._tokenizer.end_ids)
        return await asyncio.wrap_future(scores)

    async def _answer(self, request: Request) -> Generated:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._outbox, self._futures = loop, [], {}
        if not self._outbox:
            loop.call_soon(self._flush)
        future: asyncio.Future[Generated] = loop.create_future()
        self._next += 1
        self._futures[self._next] = future
        number = self._next
        self._outbox.append((number, request))
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(number)
            raise

    def _cancel(self, number: int) -> None:
        """Nobody waits for this request any more."""
        if self._futures.pop(number, None) is not None:
            self._engine.cancel([number], self._receive)

    def _flush(self) -> None:
        """Submit what was asked in this turn of the loop, and is still waited for."""
        outbox, self._outbox = self._outbox, []
        for number, _ in outbox:
            if self._futures[number].done():
                del self._futures[number]
        waited = [item for item in outbox if item[0] in self._futures]
        try:
            self._engine.submit(waited, self._receive)
        except Exception as error:  # whoever asked gets it; nobody would hear it here
            self._resolve([(number, error) for number, _ in waited])

    def _deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        """Called from the engine's thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._resolve, results)

    def _resolve(self, results: Sequence[tuple[int, Result]]) -> None:
        for number, result in results:
            if isinstance(result, Progress):
                continue
            future = self._futures.pop(number, None)
            if future is None or future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _prompt_ids(self, prompt: Sequence[Message] | Sequence[int]) -> tuple[int, ...]:
        if not prompt:
            raise RequestError("the prompt is empty; expected messages or token ids")
        if isinstance(prompt[0], Message):
            return self._tokenizer.render(cast("tuple[Message, ...]", tuple(prompt)))
        return cast("tuple[int, ...]", tuple(prompt))

    def _text(self, token_ids: tuple[int, ...], stop: tuple[str, ...]) -> str:
        """What the tokens say, up to the first stop text."""
        text = self._decode(token_ids)
        places = [place for place in (text.find(word) for word in stop) if place >= 0]
        return text[: min(places)] if places else text

    def _make_tree(self, choices: tuple[str, ...]) -> ChoiceNode:
        return choice_tree(
            [self._tokenizer.encode(choice) for choice in choices], end_ids=self._tokenizer.end_ids
        )

    def _stops(self, stop: tuple[str, ...]) -> Callable[[tuple[int, ...]], bool]:
        decode = self._tokenizer.decode
        return lambda tokens: any(text in decode(tokens) for text in stop)
