"""Files of a user that travel to another node: arenas, matchmakers and bots are in them."""

import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from legos.arena.registry import load_module, name_of_file
from legos.errors import ArenaError


@dataclass(frozen=True, slots=True, kw_only=True)
class TravellingFiles:
    """The texts of some files."""

    texts: Mapping[str, str]  # place of the file, as the settings name it -> its text

    @classmethod
    def of(cls, names: Iterable[str]) -> "TravellingFiles":
        """Read the files of names such as ``FILE.py:Class``; other names are of installed ones.

        Raises:
            ArenaError: one cannot be read.
        """
        texts: dict[str, str] = {}
        for place in {name.rpartition(":")[0] for name in names}:
            if place.endswith(".py"):
                try:
                    texts[place] = Path(place).read_text("utf-8")
                except OSError as error:
                    raise ArenaError(f"file {place} cannot be read: {error}") from error
        return cls(texts=texts)

    def load(self) -> None:
        """Load the texts, so that the same names find them in this process."""
        for place, text in self.texts.items():
            folder = tempfile.mkdtemp(prefix="legos-arena-")  # of this user alone
            copy = Path(folder) / Path(place).name
            copy.write_text(text, "utf-8")
            sys.modules[name_of_file(Path(place))] = load_module(f"{copy}")
