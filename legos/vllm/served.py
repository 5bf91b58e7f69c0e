"""The names of a run's adapters at a vLLM server, and the folders from which it reads them.

A name contains the run, the version and the digest, so that the left-overs of another run can never
be taken for adapters of this one, and vLLM's caches, which go by name, never mix two of them.
"""

import asyncio
import re
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from legos.files.atomic import clear_unfinished, write_file, write_folder
from legos.vllm.live import ServedModel
from legos.weights.adapter import Adapter
from legos.weights.peft import read_peft, write_peft

__all__ = ["AdapterFolders"]

RUN_FILE = "run"  # holds the run's part of the names
_NAME = re.compile(r"[^@+]+@\d+\+(?P<run>[0-9a-f]+)\+[0-9a-f]+")


class AdapterFolders:
    """One PEFT folder for each served adapter of a run; a folder is never written twice.

    Attributes:
        run: the run's part of the names; a resumed run has the same.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder that the server sees under the same path; it is made if it does not exist.

        Args:
            folder: the folder, for this run alone.
        """
        self._folder = folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        clear_unfinished(self._folder)
        name = self._folder / RUN_FILE
        if not name.exists():
            write_file(name, secrets.token_hex(4))
        self.run = name.read_text()

    def served(self, adapter: Adapter) -> ServedModel:
        """The name of an adapter at the server."""
        info = adapter.info
        model = f"{info.name}@{info.version}+{self.run}+{info.digest}"
        return ServedModel(model=model, adapter=info.name, version=info.version, digest=info.digest)

    def is_own(self, model: str) -> bool:
        """Whether a name at the server is that of an adapter of this run."""
        found = _NAME.fullmatch(model)
        return found is not None and found["run"] == self.run

    def place(self, served: ServedModel) -> Path:
        """Where the server reads an adapter."""
        return self._folder / served.model

    async def write(self, adapter: Adapter, served: ServedModel) -> Path:
        """Write an adapter, unless its folder exists already.

        Raises:
            AdapterError: the existing folder is damaged, or PEFT has no name for an array.
            CheckpointError: the files cannot be written.
        """
        place = self.place(served)
        if place.exists():
            (await asyncio.to_thread(read_peft, place)).checked(served.digest, f"remove {place}")
        else:
            await asyncio.to_thread(write_folder, place, lambda new: write_peft(adapter, new))
        return place

    def remove(self, model: str) -> None:
        """Remove the folder of an adapter that the server cannot read any more."""
        shutil.rmtree(self._folder / model, ignore_errors=True)

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove all folders but those of some names."""
        for place in self._folder.iterdir():
            if place.is_dir() and place.name not in kept:
                self.remove(place.name)
