"""Publish to many servers that share the work: the newest version wins, and nobody waits for one.

Each server has a task that gives it what it lacks, one adapter after the other. While it loads one,
newer versions replace each other, so a server that was slow or stopped gets the newest and none of
those between. An adapter never changes and is loaded as a whole, so no server has half a version.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from legos.clients.pool import all_done
from legos.errors import AdapterError, EndpointError, EngineError
from legos.protocols import Publisher
from legos.records.names import adapter_name
from legos.weights.adapter import Adapter, AdapterInfo

logger = logging.getLogger(__name__)

PATIENCE = 1.0  # how long later servers are waited for, in times that the first one took
GRACE_S = 0.02  # and at least
AGAIN_S = 5.0  # between attempts at a server that fails


class Reader(Publisher, Protocol):
    """Loads adapters into one server."""

    async def aclose(self) -> None:
        """Close the connections."""


class _Server:
    """One server: what it has and what it lacks."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.name, self.reader = name, reader
        self.has: dict[str, Adapter] = {}
        self.lacks: dict[str, Adapter | None] = {}  # None: the name is to be dropped
        self.has_loaded = False  # whether it has ever loaded anything
        self.failure: Exception | None = None  # of its newest attempt
        self.task: asyncio.Task[None] | None = None


class Broadcaster:
    """Publishes to many servers at once.

    ``publish`` returns when the servers that keep up have the adapter: once the first one has it,
    the others get as long again (at least 20 ms). A server that is later is not
    waited for again before it has caught up, and ``holds`` says that it lacks the version. The
    first adapter of all is waited for at every server, so that a wrong address ends the run at its
    start. It belongs to one event loop.

    Source: the rule for stragglers is that of backup workers, arXiv:1604.00981, with the first
    answer in place of a fixed number.
    """

    def __init__(self, readers: Iterable[tuple[str, Reader]]) -> None:
        """Make a broadcaster; nothing is sent yet.

        Args:
            readers: name of each server and what loads adapters into it; at least one. Names are
                for the lags and the log.
        """
        self._servers = [_Server(*each) for each in readers]
        self._newest: dict[str, Adapter] = {}
        self._settled: dict[str, Adapter] = {}  # what requests expect of each name
        self._changed = asyncio.Condition()
        self._refusal: Exception | None = None  # that no call has raised
        self._calls = 0  # that wait for servers; each of them raises the refusal

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; return once it is live on the servers that keep up.

        Raises:
            AdapterError: a server refuses it, and it counts as not published; or one refuses an
                adapter that was published before.
            EngineError: no server answers, or one does not at the first adapter.
        """
        name, former = adapter.name, self._newest.get(adapter.name)
        if former is not None and former.info == adapter.info:
            adapter = former
        self._newest[name] = adapter
        await self._spread(name, adapter, lambda s: self._is_newest(s, name, adapter))
        self._settled[name] = adapter
        return adapter.info

    async def drop(self, name: str) -> None:
        """Drop an adapter everywhere; running requests finish with it.

        Raises:
            AdapterError: no adapter of that name was published.
            EngineError: no server answers.
        """
        if name not in self._newest:
            raise AdapterError(f"adapter {name!r} is not live, so it cannot be dropped")
        del self._newest[name]
        self._settled.pop(name, None)
        await self._spread(name, None, lambda s: name not in s.has and name not in s.lacks)

    async def reload(self, index: int) -> None:
        """Load everything into a server that was started again; return once it has it.

        What was being sent there is aborted.

        Args:
            index: place of the server among the readers.

        Raises:
            AdapterError: the server refuses an adapter.
            EngineError, EndpointError: it fails; it is asked again in a few seconds.
        """
        server = self._servers[index]
        if server.task is not None:
            server.task.cancel()
        server.has.clear()
        server.failure, wanted = None, dict(self._newest)
        server.lacks = {**wanted}
        server.task = asyncio.create_task(self._serve(server))

        def loaded() -> bool:
            return all(self._is_newest(server, *each) for each in wanted.items())

        async with self._changed:
            await self._changed.wait_for(lambda: self._refusal or server.failure or loaded())
        if error := self._refusal or server.failure:
            raise error

    def holds(self, index: int, adapter: str) -> bool:
        """Whether a server has the version of an adapter that requests expect.

        Args:
            index: place of the server among the readers.
            adapter: ``NAME``, whose newest published version is expected, or ``NAME@VERSION``.
        """
        name = adapter_name(adapter)
        expected, has = self._settled.get(name), self._servers[index].has.get(name)
        if expected is None:
            return True  # not published here: the base model, or an adapter of the server's own
        wanted = adapter.partition("@")[2]
        if has is not None and wanted:
            return str(has.version) == wanted
        return has is not None and self._is_newest(self._servers[index], name, expected)

    def live(self) -> dict[str, AdapterInfo]:
        """Name of each adapter that was published -> the version that requests expect."""
        return {name: adapter.info for name, adapter in dict(self._settled).items()}

    def lags(self) -> dict[str, int]:
        """Name of each server -> by how many versions it is behind, of the name where most."""
        newest = dict(self._newest)

        def lag(server: _Server, name: str) -> int:
            has = server.has.get(name)
            behind = 1 if has is None else max(1, newest[name].version - has.version)
            return 0 if has is newest[name] else behind

        return {
            server.name: max((lag(server, name) for name in newest), default=0)
            for server in self._servers
        }

    async def aclose(self) -> None:
        """Stop publishing, and close the connections."""
        tasks = [server.task for server in self._servers if server.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await all_done(server.reader.aclose() for server in self._servers)

    def _is_newest(self, server: _Server, name: str, adapter: Adapter) -> bool:
        """Whether a server has this version of a name, or the one that has replaced it."""
        has = server.has.get(name)
        return has is adapter or has is self._newest.get(name)

    async def _spread(
        self, name: str, adapter: Adapter | None, done: Callable[[_Server], bool]
    ) -> None:
        """Give every server an adapter, or have it dropped, and wait for those that keep up."""
        up_to_date = [server for server in self._servers if not server.lacks]
        new = [server for server in up_to_date if not server.has_loaded]
        for server in self._servers:
            if not done(server) or server.lacks:
                server.lacks[name] = adapter
                if server.task is None or server.task.done():
                    server.task = asyncio.create_task(self._serve(server))
        loop = asyncio.get_running_loop()
        started = loop.time()

        def ended(servers: Iterable[_Server]) -> bool:
            return all(done(server) or server.failure is not None for server in servers)

        def one_has_it() -> bool:
            return any(map(done, self._servers))

        self._calls += 1
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._refusal or ended(self._servers) or (ended(new) and one_has_it())
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(GRACE_S, PATIENCE * (loop.time() - started))):
                        await self._changed.wait_for(lambda: self._refusal or ended(up_to_date))
            self._raise(name, new if one_has_it() else self._servers)
        finally:
            self._calls -= 1

    def _raise(self, name: str, servers: list[_Server]) -> None:
        """Raise what a server refused, or the first failure of some servers."""
        if (refusal := self._refusal) is not None:
            if self._calls == 1:
                self._refusal = None
            raise refusal
        failures = [server.failure for server in servers if server.failure is not None]
        if failures:
            failures[0].add_note(f"{len(failures)} of {len(self._servers)} servers lack {name!r}")
            raise failures[0]

    async def _serve(self, server: _Server) -> None:
        """Give a server what it lacks until it has everything."""
        while server.lacks:
            name, adapter = next(iter(server.lacks.items()))
            try:
                await self._give(server, name, adapter)
            except (EngineError, EndpointError) as error:
                logger.warning("%s misses %r, and is asked again: %s", server.name, name, error)
                server.failure = error
                gone = {n: has for n, has in server.has.items() if n not in self._newest}
                server.has = gone  # it may have started again, without adapters
                server.lacks = {**self._newest, **dict.fromkeys(gone)}
            except Exception as error:  # raised where this adapter is published, or the next one
                server.failure = None
                if self._newest.get(name) is adapter:  # otherwise it was replaced, or raised before
                    self._refusal = error
                    self._newest.pop(name, None)
                    if name in self._settled:
                        self._newest[name] = self._settled[name]
            else:
                server.has_loaded, server.failure = True, None
            if server.failure is None and name in server.lacks and server.lacks[name] is adapter:
                del server.lacks[name]
            async with self._changed:
                self._changed.notify_all()
            if server.failure is not None:
                await asyncio.sleep(AGAIN_S)

    async def _give(self, server: _Server, name: str, adapter: Adapter | None) -> None:
        if adapter is not None:
            await server.reader.publish(adapter)
            server.has[name] = adapter
        elif name in server.has:
            try:
                await server.reader.drop(name)
            except AdapterError as error:  # a server that has lost it, most of all
                logger.warning("%s: %s", server.name, error)
            del server.has[name]
