"""An arena that travels to another node: its name, and the text of the file that it is in."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from legos.errors import ArenaError


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
        """The arena's name in this process, where its file is written into a folder of its own."""
        if self.file is None:
            return self.name
        place = Path(tempfile.mkdtemp(prefix="legos-arena-")) / self.file  # of this user alone
        place.write_text(self.text, "utf-8")
        return f"{place}:{self.name}"
