"""How adapters get to servers: their bytes in every request, or one copy in a shared folder."""

import asyncio
import itertools
import json
import secrets
import shutil
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from legos.errors import ConfigError
from legos.files.atomic import refusals_named, write_folder
from legos.weights.adapter import Adapter, AdapterInfo, pack_adapter
from legos.weights.folder import write_adapter

__all__ = ["Carrier", "Content", "InRequests", "SharedFolder"]

SLOTS = 3  # newest adapters that are kept for servers that have not got them


class Content(NamedTuple):
    """The body of a request that loads an adapter into a server."""

    body: bytes
    kind: str  # its content type


class Carrier(Protocol):
    """Prepares each adapter once for all servers."""

    def carried(self, adapter: Adapter) -> AbstractAsyncContextManager[Content]:
        """What a request for an adapter contains; servers can load it within the block."""
        ...

    def close(self) -> None:
        """Remove what was prepared."""
        ...


class InRequests:
    """Every request has the bytes of the adapter."""

    def __init__(self) -> None:
        self._slots: dict[AdapterInfo, asyncio.Future[bytes]] = {}

    @asynccontextmanager
    async def carried(self, adapter: Adapter) -> AsyncGenerator[Content]:
        """See ``Carrier``."""
        info = adapter.info
        if info not in self._slots:
            loop = asyncio.get_running_loop()
            self._slots[info] = loop.run_in_executor(None, pack_adapter, adapter)
            if len(self._slots) > SLOTS:
                del self._slots[next(iter(self._slots))]
        yield Content(await asyncio.shield(self._slots[info]), "application/octet-stream")

    def close(self) -> None:
        """Forget the bytes."""
        self._slots.clear()


class SharedFolder:
    """Every adapter is written once; a request names its place below the servers' folder.

    A folder appears whole, under a name that is never used again, and its digest is verified by
    the server. The newest three stay, and each that a server may still be reading.
    """

    def __init__(self, parent: Path) -> None:
        """Make a folder of our own.

        Args:
            parent: folder that this machine shares with the servers, each of which was started
                with it as ``--adapter-folder``, mounted where it may.

        Raises:
            ConfigError: there is no such folder.
            CheckpointError: nothing can be written there.
        """
        if not parent.is_dir():
            raise ConfigError(
                f"adapter_folder is {str(parent)!r}, which is no folder; create it, on a file "
                "system that the servers share"
            )
        self._folder = parent / f"legos-{secrets.token_hex(4)}"
        with refusals_named(parent):
            self._folder.mkdir()
        self._slots: dict[AdapterInfo, _Copy] = {}
        self._numbers = itertools.count()

    @asynccontextmanager
    async def carried(self, adapter: Adapter) -> AsyncGenerator[Content]:
        """See ``Carrier``."""
        info = adapter.info
        if info not in self._slots:
            name = f"{next(self._numbers)}-{info.name}@{info.version}"
            self._slots[info] = _Copy(adapter, self._folder / name)
        copy = self._slots[info]
        copy.readers += 1
        try:
            await asyncio.shield(copy.written)
            path = copy.place.relative_to(self._folder.parent)
            yield Content(json.dumps({"path": str(path)}).encode(), "application/json")
        finally:
            copy.readers -= 1
            await self._retire()

    def close(self) -> None:
        """Remove our folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _retire(self) -> None:
        """Remove the oldest copies, unless a server may be reading them, and those that failed."""
        oldest = list(self._slots)[:-SLOTS]
        for info, copy in list(self._slots.items()):
            if copy.readers == 0 and (info in oldest or copy.failed):
                del self._slots[info]
                await asyncio.to_thread(shutil.rmtree, copy.place, ignore_errors=True)


class _Copy:
    """One adapter in the folder."""

    def __init__(self, adapter: Adapter, place: Path) -> None:
        self.place, self.readers = place, 0
        loop = asyncio.get_running_loop()
        self.written = loop.run_in_executor(None, _write, adapter, place)

    @property
    def failed(self) -> bool:
        """Whether it could not be written."""
        return self.written.done() and self.written.exception() is not None


def _write(adapter: Adapter, place: Path) -> None:
    write_folder(place, lambda new: write_adapter(adapter, new))
