"""The adapters that are live in a vLLM server: their names there, and the requests that use them.

The publisher announces an adapter once the server has it. The client asks here for the name to put
into a request, never the server's own list, which may hold adapters of other runs.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from legos.data.names import BASE, adapter_name
from legos.errors import EngineError, RequestError, did_you_mean
from legos.weights.adapter import AdapterInfo

__all__ = ["LiveAdapters", "Recover", "ServedModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One set of weights at a vLLM server: an adapter, or the base model."""

    model: str  # its name in requests; never used twice for different weights
    adapter: str  # name of the adapter in the run; "base" for the base model
    version: int  # policy version; 0 for the base model
    digest: str  # digest of the arrays; empty for the base model

    @property
    def info(self) -> AdapterInfo:
        """Name, version and digest."""
        return AdapterInfo(name=self.adapter, version=self.version, digest=self.digest)


Recover = Callable[[Exception, int], Awaitable[None]]
"""Makes the server answer again after an error that came in an epoch of ``LiveAdapters``."""


class LiveAdapters:
    """The live adapters of one server, for the clients and the publisher of one event loop.

    A client sends every request like this::

        while True:
            with live.use(adapter) as served:
                epoch = live.epoch
                try:
                    return await send(served.model)
                except Unreachable as error:  # also: the server does not know served.model
                    failure = error
            await live.recover(failure, epoch)

    Attributes:
        base_model: the server's name of the base model.
        epoch: number of times that the server has been made to answer again.
    """

    def __init__(self, base_model: str) -> None:
        """Start without adapters.

        Args:
            base_model: the server's name of the base model, which answers for ``base`` unless an
                adapter of that name is announced.
        """
        self.base_model = base_model
        self.epoch = 0
        base = ServedModel(model=base_model, adapter=BASE, version=0, digest="")
        self._newest: dict[str, ServedModel] = {BASE: base}
        self._older: list[ServedModel] = []  # replaced; a request may still use them
        self._in_flight: Counter[str] = Counter()  # name in requests -> requests
        self._freed: asyncio.Future[None] | None = None
        self._recover: Recover | None = None

    @property
    def newest(self) -> Mapping[str, ServedModel]:
        """Name of each adapter -> what answers for it."""
        return self._newest

    @contextmanager
    def use(self, adapter: str) -> Generator[ServedModel]:
        """Within the block, a request is in flight; its adapter stays loaded.

        Args:
            adapter: name of the adapter, or ``NAME@VERSION`` to insist on a version.

        Raises:
            RequestError: no adapter of that name is live, or it has another version.
        """
        served = self._find(adapter)
        self._in_flight[served.model] += 1
        try:
            yield served
        finally:
            self._in_flight[served.model] -= 1
            if not self._in_flight[served.model]:
                del self._in_flight[served.model]
                if self._freed is not None and not self._freed.done():
                    self._freed.set_result(None)

    def announce(self, served: ServedModel) -> None:
        """New requests for this name use this adapter; the former one is kept while it is used."""
        former = self._newest.get(served.adapter)
        if former == served:
            return
        if former is not None and former.digest:
            self._older.append(former)
        self._newest[served.adapter] = served

    def withdraw(self, adapter: str) -> None:
        """New requests for this name are refused; its last version is kept while it is used."""
        self._older.append(self._newest.pop(adapter))

    def unused(self) -> Collection[ServedModel]:
        """Take out the replaced adapters that no request uses any more."""
        found = [served for served in self._older if not self._in_flight[served.model]]
        self._older = [served for served in self._older if served not in found]
        return found

    def loaded(self) -> Iterator[ServedModel]:
        """The adapters that the server must have: the live ones, and replaced ones in use."""
        yield from (served for served in self._newest.values() if served.digest)
        yield from self._older

    async def request_ended(self) -> None:
        """Wait until some adapter has lost its last request."""
        if self._freed is None or self._freed.done():
            self._freed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._freed)

    def on_failure(self, recover: Recover) -> None:
        """Set what ``recover`` calls."""
        self._recover = recover

    async def recover(self, failure: Exception, epoch: int) -> None:
        """Wait until the server answers again and has all live adapters.

        Args:
            failure: how the server failed a request.
            epoch: the epoch in which the request was sent. If it has passed, the server has been
                made to answer already, and this returns at once.

        Raises:
            EngineError: the server does not come back; the run ends.
        """
        if epoch != self.epoch:
            return
        if self._recover is None:
            raise EngineError(str(failure)) from failure
        await self._recover(failure, epoch)

    def _find(self, adapter: str) -> ServedModel:
        name = adapter_name(adapter)
        live = self._newest.get(name)
        if live is None:
            hint = did_you_mean(name, self._newest)
            raise RequestError(f"adapter {adapter!r} is not live in the vLLM server{hint}")
        if adapter == name:
            return live
        for served in (live, *self._older):
            if adapter == f"{served.adapter}@{served.version}":
                return served
        raise RequestError(f"adapter {adapter!r} is not live; {name!r} is at {live.version}")
