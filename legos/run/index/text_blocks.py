"""The texts of plays in the index: in blocks of about a megabyte, in lower case.

``bytes.find`` searches them faster than any function of SQL, and no index of words has to be made.
"""

import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["add_texts", "numbers_having"]

_Stored = tuple[int, bytes, bytes, bytes]
BLOCK_BYTES = 1 << 20  # size from which on the next text begins a new block
_WRITE = "INSERT OR REPLACE INTO texts VALUES (?,?,?,?)"


def add_texts(tables: sqlite3.Connection, texts: Sequence[tuple[int, str]]) -> None:
    """Append texts to the newest block of the table ``texts``, and begin others where it is full.

    Args:
        tables: the index.
        texts: number and text of each play.
    """
    newest = tables.execute("SELECT * FROM texts ORDER BY first DESC LIMIT 1").fetchone()
    block = _Block.of(newest) if newest else _Block()
    for number, text in texts:
        if block.size >= BLOCK_BYTES:
            tables.execute(_WRITE, block.row())
            block = _Block()
        block.append(number, text.lower().encode(errors="replace"))
    if block.size:
        tables.execute(_WRITE, block.row())


def numbers_having(rows: Iterable[_Stored], text: str) -> set[int]:
    """Numbers of the plays whose texts contain a text; upper case counts as lower.

    Args:
        rows: those of the table ``texts``.
        text: the text.
    """
    wanted = text.lower().encode(errors="replace")
    found: set[int] = set()
    for row in rows:
        found.update(_Block.of(row).having(wanted))
    return found


class _Block:
    """The texts of some plays, one behind the other."""

    def __init__(self) -> None:
        self.size = 0
        self._numbers, self._ends, self._parts = array("q"), array("q"), list[bytes]()

    @classmethod
    def of(cls, row: _Stored) -> "_Block":
        block = cls()
        block._numbers.frombytes(row[1])
        block._ends.frombytes(row[2])
        block._parts, block.size = [row[3]], len(row[3])
        return block

    def row(self) -> _Stored:
        numbers, ends = self._numbers.tobytes(), self._ends.tobytes()
        return self._numbers[0], numbers, ends, b"".join(self._parts)

    def append(self, number: int, text: bytes) -> None:
        self._parts += (text, b"\0")
        self.size += len(text) + 1
        self._numbers.append(number)
        self._ends.append(self.size)

    def having(self, text: bytes) -> Iterator[int]:
        """Numbers of the plays whose texts contain a text."""
        whole = b"".join(self._parts)
        at = whole.find(text)
        while at >= 0:
            place = bisect_right(self._ends, at)
            yield self._numbers[place]
            at = whole.find(text, self._ends[place])
