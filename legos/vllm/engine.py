"""vLLM as an engine: token ids go to a server, token ids and log-probabilities come back.

All requests and the publisher share one event loop, on a thread of their own.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from legos.data.check import RequestCheck
from legos.data.names import POLICY, adapter_name
from legos.data.request import Generated, Progress, Request, Result
from legos.errors import EngineError, LegosError, RequestError
from legos.protocols import Deliver
from legos.vllm.completions import Query, generated_of, query_of
from legos.vllm.lists import PromptLists
from legos.vllm.live import LiveAdapters
from legos.vllm.scores import score_prompts
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["AdapterLoader", "VllmEngine"]

CLOSE_S = 5.0  # maximum time to unload the adapters at the end
T = TypeVar("T")
_Prompt = tuple[int, ...]


class AdapterLoader(Protocol):
    """Loads adapters into a server; ``legos.vllm.publisher.VllmPublisher`` does."""

    async def start(self) -> None:
        """Check the server; called once, before anything else."""
        ...

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; return once it is live."""
        ...

    async def drop(self, name: str) -> None:
        """Drop an adapter."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class VllmEngine:
    """Implements ``LocalEngine`` on a vLLM server.

    Differences from an engine in this process: seeds have no effect; a request with ``stream`` gets
    all tokens as one ``Progress``; ``in_flight`` is always "pin", since a running request keeps the
    adapter that it began with.
    """

    def __init__(
        self,
        url: str,
        live: LiveAdapters,
        loader: AdapterLoader,
        *,
        num_vocabulary: int,
        context: int,
        api_key: str | None = None,
    ) -> None:
        """Start the engine's thread, and check the server.

        Args:
            url: address of the server.
            live: the adapters that are live there.
            loader: loads them.
            num_vocabulary: token ids must be below it.
            context: maximum number of prompt and completion tokens together.
            api_key: bearer token.

        Raises:
            AdapterError: the server cannot serve the run's adapters.
            EngineError: the server does not answer.
        """
        self._live, self._loader = live, loader
        self._lists = PromptLists(url, live, api_key=api_key)
        self._check = RequestCheck(num_vocabulary=num_vocabulary, context=context)
        self._waiting: dict[tuple[Deliver, int], asyncio.Task[None]] = {}
        self._tokens: Counter[str] = Counter()
        self._requests = 0
        self._closed: EngineError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="legos-vllm", daemon=True
        )
        self._thread.start()
        try:
            self._run(loader.start()).result()
        except BaseException:
            self.close()
            raise

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Send requests; see ``Engine``.

        Raises:
            EngineError: it is closed.
        """
        self._check_open()
        self._loop.call_soon_threadsafe(self._accept, tuple(requests), deliver)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; the server ends a list when all its prompts are cancelled."""
        if self._closed is None:
            self._loop.call_soon_threadsafe(self._cancel, tuple(numbers), deliver)

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Load an adapter under its name; see ``Engine``."""
        return self._run(self._loader.publish(adapter))

    def drop_adapter(self, name: str) -> "Future[None]":
        """Drop a named adapter; see ``Engine``."""
        return self._run(self._loader.drop(name))

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        return {name: info.version for name, info in self.adapters().items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters: name -> version and digest."""
        live = dict(self._live.newest)
        return {name: served.info for name, served in live.items() if served.digest}

    def stats(self) -> Mapping[str, float]:
        """Counts since the start, and the seconds in which a request waited for its answer.

        Raises:
            EngineError: it is closed.
        """
        self._check_open()
        return {
            "requests_total": self._requests,
            "waiting": len(self._waiting),
            "tokens_generated_total": self._tokens.total(),
            "worked_seconds_total": self._lists.seconds,
        }

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens received for a name; those of an aborted list are not known."""

        async def count() -> int:
            return self._tokens[adapter]

        return self._run(count())

    def score(
        self,
        prompts: Sequence[tuple[_Prompt, Sequence[_Prompt]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation as the complete answer to its prompt, nats."""

        async def ask(query: Query, prompt: _Prompt) -> Mapping[int, float]:
            reason = self._check.refusal(Request(prompt_ids=prompt, max_tokens=1))
            if reason is not None:
                raise RequestError(f"cannot score: {reason}")
            return (await self._lists.ask(query, prompt))[0].others[0]

        return self._run(score_prompts(prompts, end_ids=end_ids, adapter=adapter, ask=ask))

    def close(self) -> None:
        """Close the engine; every waiting request gets an ``EngineError``."""
        if self._closed is not None:
            return
        self._closed = EngineError("the engine was closed")

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TimeoutError):  # a server that hangs keeps its adapters
                async with asyncio.timeout(CLOSE_S):
                    await self._loader.aclose()
            await self._lists.aclose()
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join()
        self._loop.close()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _run(self, work: "Coroutine[Any, Any, T]") -> "Future[T]":
        """Run a coroutine on the engine's thread; closing the engine ends it with an error."""

        async def until_closed() -> T:
            try:
                return await work
            except asyncio.CancelledError:
                self._check_open()
                raise

        if self._closed is None:
            return asyncio.run_coroutine_threadsafe(until_closed(), self._loop)
        work.close()
        refused: Future[T] = Future()
        refused.set_exception(self._closed)
        return refused

    def _accept(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Start a task for every request; all tasks of this turn fill the outbox together."""
        self._requests += len(requests)
        for number, request in requests:
            task = self._loop.create_task(self._serve(number, request, deliver))
            self._waiting[deliver, number] = task
            task.add_done_callback(partial(self._ended, (deliver, number)))

    def _ended(self, key: tuple[Deliver, int], _: "asyncio.Task[None]") -> None:
        self._waiting.pop(key, None)

    def _cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        for number in numbers:
            task = self._waiting.get((deliver, number))
            if task is not None:
                task.cancel()

    async def _serve(self, number: int, request: Request, deliver: Deliver) -> None:
        """Answer one request, and deliver the result."""
        try:
            generated = await self._result(request)
            if request.stream:
                fields = {name: getattr(generated, name) for name in Progress.__struct_fields__}
                deliver([(number, Progress(**fields))])
            result: Result = generated
        except asyncio.CancelledError:
            result = self._closed or Generated(finish_reason="cancelled")
        except LegosError as error:
            result = error
        deliver([(number, result)])

    async def _result(self, request: Request) -> Generated:
        reason = self._check.refusal(request)
        if reason is not None:
            raise RequestError(reason)
        query = query_of(request)
        if request.restrict:
            return await self._restricted(query, request)
        drawn, version = await self._lists.ask(query, request.prompt_ids)
        generated = generated_of(drawn, request, version=version)
        self._tokens[adapter_name(request.adapter)] += len(generated.token_ids)
        return generated

    async def _restricted(self, query: Query, request: Request) -> Generated:
        """Sample legal tokens only, one request for each token that is not the only legal one."""
        node = request.choices
        token_ids: _Prompt = ()
        logprobs: list[float] = []
        versions: list[int] = []
        legal: list[_Prompt] = []
        version = 0
        while node is not None and node.children and len(token_ids) < request.max_tokens:
            prompt = request.prompt_ids + token_ids
            one = replace(query, max_tokens=1, allowed=node.legal)
            drawn, version = await self._lists.ask(one, prompt)
            self._tokens[adapter_name(request.adapter)] += 1
            legal.append(node.legal)
            logprobs += drawn.logprobs
            versions.append(version)
            token_ids += drawn.token_ids
            node = node.children.get(token_ids[-1])
        closed = node is None or not node.children
        return Generated(
            token_ids=token_ids,
            logprobs=tuple(logprobs),
            versions=tuple(versions),
            legal=tuple(legal),
            finish_reason="stop" if closed else "length",
        )
