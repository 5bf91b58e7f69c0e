"""The adapters that are live in a vLLM server: their names there, and the requests that use them.

The publisher announces an adapter once the server has it. A request gets its name from here, never
from the server's own list, which may hold adapters of other runs.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from legos.errors import RequestError, did_you_mean
from legos.records.names import BASE, adapter_name
from legos.weights.adapter import Adapter


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """One set of weights at a vLLM server."""

    model: str  # its name in requests; never used twice for different weights
    adapter: Adapter | None  # None: the base model
    num_requests: int = 0  # that use it now

    @property
    def version(self) -> int:
        """Policy version; 0 for the base model."""
        return 0 if self.adapter is None else self.adapter.version


class LiveAdapters:
    """The live adapters of one server, for the requests and the publisher of one event loop.

    Attributes:
        newest: name of each adapter -> what answers for it.
    """

    def __init__(self) -> None:
        self.newest: dict[str, ServedModel] = {}
        self._older: list[ServedModel] = []  # replaced; a request may still use them

    @contextmanager
    def use(self, adapter: str) -> Generator[ServedModel]:
        """Within the block, a request is in flight; its adapter stays loaded.

        Args:
            adapter: name of the adapter, or ``NAME@VERSION`` to insist on a version.

        Raises:
            RequestError: no adapter of that name is live, or it has another version.
        """
        served = self._find(adapter)
        served.num_requests += 1
        try:
            yield served
        finally:
            served.num_requests -= 1

    def announce(self, served: ServedModel) -> None:
        """New requests for this name use this adapter; the former one is kept while it is used."""
        name = BASE if served.adapter is None else served.adapter.name
        if name in self.newest:
            self.withdraw(name)
        self.newest[name] = served

    def withdraw(self, name: str) -> None:
        """New requests for this name are refused; its last version is kept while it is used."""
        former = self.newest.pop(name)
        if former.adapter is not None:  # the model itself cannot be unloaded
            self._older.append(former)

    def unused(self) -> Collection[ServedModel]:
        """Take out the replaced adapters that no request uses any more."""
        found = [served for served in self._older if not served.num_requests]
        self._older = [served for served in self._older if served.num_requests]
        return found

    def _find(self, adapter: str) -> ServedModel:
        name = adapter_name(adapter)
        live = self.newest.get(name)
        if live is None:
            hint = did_you_mean(name, self.newest)
            raise RequestError(f"adapter {adapter!r} is not live in the vLLM server{hint}")
        older = (one for one in self._older if one.adapter and one.adapter.name == name)
        for served in (live, *older):
            if adapter in (name, f"{name}@{served.version}"):
                return served
        raise RequestError(f"adapter {adapter!r} is not live; {name!r} is at {live.version}")
