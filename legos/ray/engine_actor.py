"""An engine in a process of a Ray cluster: requests of many processes come in, results go out.

Each process that asks has a box, in which results wait until it takes them, many at a time. An
engine serves nobody before it has been opened: a process that Ray started again first gets the
adapters that are live.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from uuid import uuid4

from msgspec.structs import replace

from legos.chat.stops import stop_test
from legos.chat.tokenizer import ChatTokenizer
from legos.data.request import Grammar, Request, Result
from legos.device import LocalEngine
from legos.protocols import Deliver
from legos.ray.kit import check_kit
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["EngineActor", "MakeActorEngine", "Report", "Results"]

MakeActorEngine = Callable[[], tuple[LocalEngine, ChatTokenizer]]
"""Makes an engine, and the tokenizer of its model, in the process that calls it."""

Results = list[tuple[int, Result]]
Report = tuple[str, Mapping[str, int], float]
"""Name of the process's life, tokens sampled by adapter name, and seconds that it computed."""


class _Box:
    """Results that wait for the process that asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._results: Results = []
        self._filled = asyncio.Event()
        self.deliver: Deliver = self._deliver  # one object: the engine compares receivers

    def _deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        """Receive results on the engine's thread."""
        self._loop.call_soon_threadsafe(self.put, results)

    def put(self, results: Sequence[tuple[int, Result]]) -> None:
        self._results += results
        self._filled.set()

    async def take(self) -> Results:
        await self._filled.wait()
        taken, self._results = self._results, []
        self._filled.clear()
        return taken


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
        self._opened = asyncio.Event()
        self._boxes: dict[str, _Box] = {}
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

    async def open(self) -> None:
        """Begin to serve."""
        await self.prepare()
        self._opened.set()

    async def load(self, *adapters: Adapter) -> list[AdapterInfo]:
        """Load adapters; returns what is live under their names, with digests computed here."""
        await self.prepare()
        self._names.update(adapter.name for adapter in adapters)
        loading = [self._engine.load_adapter(adapter) for adapter in adapters]
        return [await asyncio.wrap_future(each) for each in loading]

    async def drop(self, name: str) -> None:
        """Drop an adapter."""
        await asyncio.wrap_future(self._engine.drop_adapter(name))

    async def submit(self, box: str, requests: Sequence[tuple[int, Request]]) -> None:
        """Queue requests; their results go into the box, and so does an error that refuses them."""
        await self._opened.wait()
        out = self._box(box)
        try:
            self._engine.submit([(n, self._whole(request)) for n, request in requests], out.deliver)
        except Exception as error:  # raised where the requests were made
            out.put([(number, error) for number, _ in requests])

    async def cancel(self, box: str, numbers: Sequence[int]) -> None:
        """End requests early."""
        self._engine.cancel(numbers, self._box(box).deliver)

    async def take(self, box: str) -> Results:
        """Wait for results, and take all that are there."""
        return await self._box(box).take()

    async def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        end_ids: Sequence[int],
        adapter: str,
    ) -> list[list[float]]:
        """Log-probability of each continuation as the complete answer to its prompt, nats."""
        await self._opened.wait()
        return await asyncio.wrap_future(
            self._engine.score(prompts, end_ids=end_ids, adapter=adapter)
        )

    async def report(self) -> Report:
        """What this process has done since it was started."""
        await self.prepare()
        counts = {
            name: await asyncio.wrap_future(self._engine.tokens_generated(name))
            for name in self._names
        }
        return self._life, counts, self._engine.stats().get("worked_seconds_total", 0.0)

    @property
    def _engine(self) -> LocalEngine:
        assert self._made is not None
        return self._made[0]

    def _box(self, name: str) -> _Box:
        if name not in self._boxes:
            self._boxes[name] = _Box(asyncio.get_running_loop())
        return self._boxes[name]

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
