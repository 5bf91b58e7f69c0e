"""An arena that travels to another node: its name, and the text of the file that it is in."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from legos.errors import ArenaError
from legos.files.atomic import write_file

__all__ = ["TravellingArena"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TravellingArena:
    """An arena's name, and the text of the file that it is in."""

    name: str
    file: str | None = None  # name of the file; None: the arena is installed
    text: str = ""

    @classmethod
    def of(cls, name: str) -> "TravellingArena":
        """Read the arena's file if it is in one.

        Raises:
            ArenaError: it cannot be read.
        """
        place, _, kind = name.rpartition(":")
        if not place.endswith(".py"):
            return cls(name=name)
        try:
            return cls(name=kind, file=Path(place).name, text=Path(place).read_text("utf-8"))
        except OSError as error:
            raise ArenaError(f"arena file {place} cannot be read: {error}") from error

    def here(self) -> str:
        """The arena's name on this node, where its file is written into a temporary folder.

        All processes of one user that are sent the same text share one file.

        Raises:
            ArenaError: the folder belongs to another user, who could replace the arena.
        """
        if self.file is None:
            return self.name
        folder = Path(tempfile.gettempdir()) / f"legos-arenas-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ArenaError(
                f"{folder}, where the file of the arena is written, can be changed by other users; "
                "remove it, or set TMPDIR to another folder"
            )
        place = folder / hashlib.sha256(self.text.encode()).hexdigest()[:16]
        place.mkdir(exist_ok=True)
        write_file(place / self.file, self.text)
        return f"{place / self.file}:{self.name}"
