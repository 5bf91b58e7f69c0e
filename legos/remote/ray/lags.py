"""By how many published versions each engine of a cluster is behind."""

import threading
from collections.abc import Iterable

__all__ = ["Lags"]


class Lags:
    """Counts the versions of each adapter, and what every engine has acknowledged.

    All methods may be called from any thread.
    """

    def __init__(self, engines: Iterable[str]) -> None:
        """Start without adapters.

        Args:
            engines: names of the engines.
        """
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}  # adapter -> versions published so far
        self._has: dict[str, dict[str, int]] = {name: {} for name in engines}

    def publish(self, adapter: str) -> int:
        """Count one more version of an adapter; returns its number, from 1."""
        with self._lock:
            self._newest[adapter] = self._newest.get(adapter, 0) + 1
            return self._newest[adapter]

    def withdraw(self, adapter: str) -> None:
        """Forget the newest version of an adapter, which was refused."""
        with self._lock:
            self._newest[adapter] -= 1

    def loaded(self, engine: str, adapter: str, number: int) -> None:
        """Note that an engine has acknowledged a version."""
        with self._lock:
            self._has[engine][adapter] = number

    def loaded_all(self, engine: str) -> None:
        """Note that an engine has the newest version of every adapter."""
        with self._lock:
            self._has[engine] = dict(self._newest)

    def lost(self, engine: str) -> None:
        """Note that an engine has died, and has nothing."""
        with self._lock:
            self._has[engine] = {}

    def drop(self, adapter: str) -> None:
        """Forget an adapter."""
        with self._lock:
            self._newest.pop(adapter, None)
            for has in self._has.values():
                has.pop(adapter, None)

    def now(self) -> dict[str, int]:
        """Name of each engine -> by how many versions it is behind, of the adapter where most."""
        with self._lock:
            return {
                engine: max((n - has.get(name, 0) for name, n in self._newest.items()), default=0)
                for engine, has in self._has.items()
            }
