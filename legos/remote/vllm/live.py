"""The adapters that are live in a vLLM server: their names there, and the requests that use them.

The publisher announces an adapter once the server has it. The client asks here for the name to put
into a request, never the server's own list, which may hold adapters of other runs.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from legos.clients.recovery import Recovery
from legos.errors import RequestError, did_you_mean
from legos.records.names import BASE, adapter_name
from legos.weights.adapter import AdapterInfo

__all__ = ["LiveAdapters", "ServedModel"]


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


class LiveAdapters:
    """The live adapters of one server, for the clients and the publisher of one event loop.

    Attributes:
        base_model: the server's name of the base model.
        recovery: brings the server back, with the adapters that are live.
    """

    def __init__(self, base_model: str) -> None:
        """Start without adapters.

        Args:
            base_model: the server's name of the base model, which answers for ``base`` unless an
                adapter of that name is announced.
        """
        self.base_model = base_model
        self.recovery = Recovery()
        base = ServedModel(model=base_model, adapter=BASE, version=0, digest="")
        self._newest: dict[str, ServedModel] = {BASE: base}
        self._older: list[ServedModel] = []  # replaced; a request may still use them
        self._in_flight: Counter[str] = Counter()  # name in requests -> requests

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
