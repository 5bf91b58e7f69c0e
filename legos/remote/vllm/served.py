"""The names of a run's adapters at a vLLM server, and the folders from which it reads them.

A name contains the run, the version and the digest, so that the left-overs of another run can never
be taken for adapters of this one, and vLLM's caches, which go by name, never mix two of them.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

from legos.files.atomic import write_folder
from legos.weights.adapter import Adapter
from legos.weights.peft import write_peft

PREFIX = "legos-vllm-"


class AdapterFolders:
    """One PEFT folder for each served adapter of a run; a folder is never written twice.

    They are in a new folder, whose name is part of the names at the server.
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
        if parent is not None:
            self._folder.chmod(0o755)  # the server may be another user, as in a container
        self._run = self._folder.name.removeprefix(PREFIX)

    def model(self, adapter: Adapter) -> str:
        """The name of an adapter at the server."""
        info = adapter.info
        return f"{info.name}@{info.version}+{self._run}+{info.digest}"

    def place(self, model: str) -> Path:
        """Where the server reads an adapter, from its name there."""
        return self._folder / model

    async def write(self, adapter: Adapter) -> None:
        """Write an adapter, unless its folder exists already.

        Raises:
            AdapterError: PEFT has no name for an array.
            CheckpointError: the files cannot be written.
        """
        place = self.place(self.model(adapter))
        if not place.exists():
            await asyncio.to_thread(write_folder, place, lambda new: write_peft(adapter, new))

    def remove(self, model: str) -> None:
        """Remove the folder of an adapter that the server cannot read any more."""
        shutil.rmtree(self.place(model), ignore_errors=True)

    def is_own(self, model: str) -> bool:
        """Whether a name at the server is that of an adapter of this run."""
        return f"+{self._run}+" in model

    def close(self) -> None:
        """Remove the folder: the server has unloaded all adapters of this run."""
        shutil.rmtree(self._folder, ignore_errors=True)
