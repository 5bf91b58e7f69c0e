"""The names of a run's adapters at a vLLM server, and the folders from which it reads them.

A name contains the run, the version and the digest, so that the left-overs of another run can never
be taken for adapters of this one, and vLLM's caches, which go by name, never mix two of them.
"""

import asyncio
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from legos.files.atomic import write_folder
from legos.remote.vllm.live import ServedModel
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter
from legos.weights.peft import write_peft

__all__ = ["AdapterFolders", "left_over"]

PREFIX = "legos-vllm-"
_NAME = re.compile(r"[^@+]+@\d+\+(?P<run>\w+)\+[0-9a-f]+")


class AdapterFolders:
    """One PEFT folder for each served adapter of a run; a folder is never written twice.

    They are in a new folder, which this process locks: those of a process that has died are not.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """Make the folder.

        Args:
            parent: where; the server sees it under the same path. None: the system's folder for
                temporary files.
        """
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).absolute()
        self._run = self._folder.name.removeprefix(PREFIX)
        self._lock = _locked(self._folder)

    def served(self, adapter: Adapter) -> ServedModel:
        """The name of an adapter at the server."""
        info = adapter.info
        model = f"{info.name}@{info.version}+{self._run}+{info.digest}"
        return ServedModel(model=model, adapter=info.name, version=info.version, digest=info.digest)

    def place(self, served: ServedModel) -> Path:
        """Where the server reads an adapter."""
        return self._folder / served.model

    async def write(self, adapter: Adapter, served: ServedModel) -> None:
        """Write an adapter, unless its folder exists already.

        Raises:
            AdapterError: the existing folder is damaged, or PEFT has no name for an array.
            CheckpointError: the files cannot be written.
        """
        place = self.place(served)
        if place.exists():
            (await asyncio.to_thread(read_adapter, place)).checked(served.digest, f"remove {place}")
        else:
            await asyncio.to_thread(write_folder, place, lambda new: write_peft(adapter, new))

    def remove(self, model: str) -> None:
        """Remove the folder of an adapter that the server cannot read any more."""
        shutil.rmtree(self._folder / model, ignore_errors=True)

    def is_own(self, model: str) -> bool:
        """Whether a name at the server is that of an adapter of this run."""
        found = _NAME.fullmatch(model)
        return found is not None and found["run"] == self._run

    def close(self, *, remove: bool) -> None:
        """Unlock the folder.

        Args:
            remove: remove it too: the server has unloaded all adapters of this run.
        """
        if self._lock is not None:
            if remove:
                shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def left_over(model: str, place: str) -> Path | None:
    """The folder of the dead process that has loaded an adapter.

    Args:
        model: name of the adapter at the server.
        place: where the server has read it.

    Returns:
        The folder of all adapters of that process; None: it is alive or of another machine, or
        somebody else has loaded the adapter.
    """
    folder = Path(place).parent
    if _NAME.fullmatch(model) is None or not folder.name.startswith(PREFIX):
        return None
    lock = _locked(folder) if folder.is_dir() else None
    if lock is None:
        return None
    os.close(lock)
    return folder


def _locked(folder: Path) -> int | None:
    """Lock a folder; returns its descriptor, or None if another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
