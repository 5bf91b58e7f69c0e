"""How adapters get to servers: their bytes in every request, or one copy in a shared folder."""

import asyncio
import itertools
import json
import secrets
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from legos.errors import ConfigError
from legos.files.atomic import refusals_named, write_folder
from legos.weights.adapter import Adapter, AdapterInfo, pack_adapter
from legos.weights.folder import write_adapter

__all__ = ["Carrier", "Content"]

SLOTS = 3  # newest adapters that are kept for servers that have not got them


class Content(NamedTuple):
    """The body of a request that loads an adapter into a server."""

    body: bytes
    kind: str  # its content type


class _Prepared:
    """One adapter, prepared for all servers."""

    def __init__(self, content: "asyncio.Future[Content]", place: Path | None) -> None:
        self.content, self.place = content, place
        self.readers = 0  # requests whose server may be reading it

    @property
    def failed(self) -> bool:
        """Whether it could not be written."""
        return self.content.done() and self.content.exception() is not None


class Carrier:
    """Prepares each adapter once for all servers.

    In a shared folder each adapter appears whole, under a name that is never used again, and its
    digest is verified by the server. The newest three stay, and each that a server may be reading.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """Make a folder of our own in the shared one.

        Args:
            parent: folder that this machine shares with the servers, each of which was started
                with it as ``--adapter-folder``, mounted where it may; None: every request has the
                bytes of the adapter.

        Raises:
            ConfigError: there is no such folder.
            CheckpointError: nothing can be written there.
        """
        self._folder: Path | None = None
        if parent is not None:
            if not parent.is_dir():
                raise ConfigError(
                    f"adapter_folder is {str(parent)!r}, which is no folder; create it, on a file "
                    "system that the servers share"
                )
            self._folder = parent / f"legos-{secrets.token_hex(4)}"
            with refusals_named(parent):
                self._folder.mkdir()
        self._prepared: dict[AdapterInfo, _Prepared] = {}
        self._numbers = itertools.count()

    @asynccontextmanager
    async def carried(self, adapter: Adapter) -> AsyncGenerator[Content]:
        """What a request for an adapter contains; servers can load it within the block."""
        info = adapter.info
        if info not in self._prepared:
            place = None
            if self._folder is not None:
                place = self._folder / f"{next(self._numbers)}-{info.name}@{info.version}"
            loop = asyncio.get_running_loop()
            content = loop.run_in_executor(None, _prepare, adapter, place)
            self._prepared[info] = _Prepared(content, place)
        prepared = self._prepared[info]
        prepared.readers += 1
        try:
            yield await asyncio.shield(prepared.content)
        finally:
            prepared.readers -= 1
            await self._retire()

    def close(self) -> None:
        """Remove our folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _retire(self) -> None:
        """Remove the oldest adapters, unless a server may be reading them, and failed ones."""
        oldest = list(self._prepared)[:-SLOTS]
        for info, prepared in list(self._prepared.items()):
            if prepared.readers == 0 and (info in oldest or prepared.failed):
                del self._prepared[info]
                if prepared.place is not None:
                    await asyncio.to_thread(shutil.rmtree, prepared.place, ignore_errors=True)


def _prepare(adapter: Adapter, place: Path | None) -> Content:
    if place is None:
        return Content(pack_adapter(adapter), "application/octet-stream")
    write_folder(place, lambda new: write_adapter(adapter, new))
    path = f"{place.parent.name}/{place.name}"
    return Content(json.dumps({"path": path}).encode(), "application/json")
