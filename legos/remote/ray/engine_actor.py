"""An engine in a process of a Ray cluster: requests of many processes come in, results go out.

Requests and results travel on a connection for each process that asks, everything else in calls of
the actor. An engine serves nobody before it has been opened: a process that Ray started again first
gets the adapters that are live.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from uuid import uuid4

from msgspec.structs import replace

from legos.chat.stops import stop_test
from legos.chat.tokenizer import ChatTokenizer
from legos.device import LocalEngine
from legos.protocols import Deliver
from legos.records.request import Grammar, Request
from legos.remote.ray.channel import Address, Channel, Door
from legos.remote.ray.frames import RequestFrame, pack_results, unpack_requests
from legos.remote.ray.kit import check_kit
from legos.remote.ray.library import ray
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["EngineActor", "MakeActorEngine", "Report"]

MakeActorEngine = Callable[[], tuple[LocalEngine, ChatTokenizer]]
"""Makes an engine, and the tokenizer of its model, in the process that calls it."""

Report = tuple[str, Mapping[str, int], float]
"""Name of the process's life, tokens sampled by adapter name, and seconds that it computed."""


class EngineActor:
    """An engine that other processes ask; the methods are those of a Ray actor."""

    def __init__(self, make: MakeActorEngine, *, kit: str) -> None:
        """Make nothing yet, so that an error of ``prepare`` reaches who asked for it.

        Args:
            make: makes the engine.
            kit: ``kit_digest`` of the run.
        """
        self._make, self._kit = make, kit
        self._life = uuid4().hex
        self._names: set[str] = set()  # every adapter that was ever loaded
        self._making = asyncio.Lock()
        self._opened = threading.Event()
        self._door: Door | None = None
        self._made: tuple[LocalEngine, ChatTokenizer] | None = None
        self._grammar = lru_cache(maxsize=64)(self._make_grammar)

    async def prepare(self) -> int:
        """Make the engine if there is none; returns the id of this process.

        Raises:
            ConfigError: this node has another version of the kit.
            ModelError: the model cannot be loaded here.
        """
        async with self._making:
            if self._made is None:
                check_kit(self._kit, node=os.uname().nodename)
                self._made = await asyncio.to_thread(self._make)
        return os.getpid()

    async def address(self) -> Address:
        """Where the processes that ask connect: frames of requests and of numbers to cancel."""
        await self.prepare()
        if self._door is None:
            self._door = Door(ray.util.get_node_ip_address(), self._serve)
        return self._door.address

    async def open(self) -> None:
        """Begin to serve."""
        await self.prepare()
        self._opened.set()

    async def load(self, *adapters: Adapter) -> tuple[list[AdapterInfo], Report]:
        """Load adapters.

        Returns:
            What is live under their names, with digests computed here; and ``report``, for which
            the trainer then need not ask.
        """
        await self.prepare()
        self._names.update(adapter.name for adapter in adapters)
        futures = [self._engine.load_adapter(adapter) for adapter in adapters]
        loading = asyncio.gather(*map(asyncio.wrap_future, futures))
        report = await self.report()  # meanwhile
        return await loading, report

    async def drop(self, name: str) -> None:
        """Drop an adapter."""
        await asyncio.wrap_future(self._engine.drop_adapter(name))

    async def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        end_ids: Sequence[int],
        adapter: str,
        by_token: bool,
    ) -> list[list[float]]:
        """Log-probability of each continuation as the complete answer to its prompt, nats."""
        await asyncio.to_thread(self._opened.wait)
        return await asyncio.wrap_future(
            self._engine.score(prompts, end_ids=end_ids, adapter=adapter, by_token=by_token)
        )

    async def report(self) -> Report:
        """What this process has done since it was started."""
        await self.prepare()
        counting = {name: self._engine.tokens_generated(name) for name in self._names}
        counts = {name: await asyncio.wrap_future(each) for name, each in counting.items()}
        return self._life, counts, self._engine.stats().get("worked_seconds_total", 0.0)

    @property
    def _engine(self) -> LocalEngine:
        assert self._made is not None
        return self._made[0]

    def _serve(self, connection: Connection) -> None:
        """Serve one process until its connection ends."""
        channel = Channel(pack_results, unpack_requests, beats=True)
        deliver: Deliver = channel.send  # one object: the engine compares receivers

        def hear(frame: RequestFrame) -> None:
            requests, cancelled = frame
            self._opened.wait()
            if cancelled:
                self._engine.cancel(cancelled, deliver)
                return
            try:
                self._engine.submit([(n, self._whole(request)) for n, request in requests], deliver)
            except Exception as error:  # raised where the requests were made
                deliver([(number, error) for number, _ in requests])

        channel.run(connection, hear)

    def _whole(self, request: Request) -> Request:
        """A request with what does not travel: the test of its stop texts, and its grammar."""
        assert self._made is not None
        tokenizer = self._made[1]
        if request.stop:
            request = replace(request, stops=stop_test(tokenizer.decode, request.stop))
        if request.json_schema is not None:
            request = replace(request, grammar=self._grammar(request.json_schema))
        return request

    def _make_grammar(self, schema: str) -> Grammar:
        from legos.chat.grammar import json_grammar  # slow to import, and rarely needed

        assert self._made is not None
        return json_grammar(schema, self._made[1])
