"""The tables of the index: a SQLite file beside the run, or in memory."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from legos.run.index.rows import NewRows

VERSION = 4  # of the tables; a cache with another one is made again
_SET_VERSION = f"PRAGMA user_version = {VERSION}"
_TABLES = resources.files("legos.run.index") / "tables.sql"


class IndexTables:
    """The tables, which several processes may use at the same time."""

    def __init__(self, path: Path) -> None:
        """Open them, and make them again where they are damaged or of another version.

        Args:
            path: the file; where it cannot be written, they are in memory.
        """
        self._path = path
        try:
            self._connection = _opened(f"{path}")
        except sqlite3.DatabaseError as error:
            self._connection = self._other(error)

    def renew(self, error: sqlite3.DatabaseError) -> None:
        """Open empty tables in place of those that have failed with an error."""
        self.close()
        self._connection = self._other(error)

    def _other(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        """Empty tables: in a new file where this one is damaged, and otherwise in memory."""
        if not isinstance(error, sqlite3.OperationalError):  # it is not full, locked or read-only
            with suppress(OSError, sqlite3.DatabaseError):
                self._path.unlink(missing_ok=True)
                return _opened(f"{self._path}")
        return _opened(":memory:")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, query: str, values: Sequence[object] = ()) -> Iterable[Any]:
        """The rows of a query."""
        return self._connection.execute(query, values)

    @property
    def newest(self) -> tuple[int, int]:
        """Number and CRC of the newest line that was added; 0 and 0: there is none."""
        [found] = self.rows("SELECT * FROM newest")
        return found

    def add(self, rows: NewRows, first: int, last: int, crc: int) -> None:
        """Add the rows of some lines, unless another process has done so meanwhile.

        Args:
            rows: the rows.
            first: number of the first line.
            last: number of the last one.
            crc: that of the last one.
        """
        tables = self._connection
        tables.execute("BEGIN IMMEDIATE")
        try:
            if self.newest[0] < first:
                plays = [play[:-1] for play in rows.plays]
                seats = [(play.number, *seat) for play in rows.plays for seat in play.seats]
                tables.executemany(f"INSERT INTO plays VALUES ({','.join('?' * 14)})", plays)
                tables.executemany("INSERT INTO seats VALUES (?,?,?,?,?,?)", seats)
                tables.executemany("INSERT INTO damaged VALUES (?)", zip(rows.damaged))
                tables.executemany("INSERT INTO texts VALUES (?,?)", rows.texts)
                self._add_moves(rows)
                tables.execute("UPDATE newest SET number = ?, crc = ?", (last, crc))
            tables.execute("COMMIT")
        except BaseException:
            tables.rollback()
            raise

    def _add_moves(self, rows: NewRows) -> None:
        tables = self._connection
        for position, found in rows.moves.items():
            count = sum(map(len, found.values()))
            [(key,)] = tables.execute(
                "INSERT INTO positions (arena, role, asked, count) VALUES (?,?,?,?)"
                " ON CONFLICT DO UPDATE SET count = count + excluded.count RETURNING id",
                (*position, count),
            )
            tables.executemany(
                "INSERT INTO moves VALUES (?,?,?,?,?) ON CONFLICT DO UPDATE"
                " SET sum = sum + excluded.sum, count = count + excluded.count",
                [(key, step, move, sum(p), len(p)) for (step, move), p in found.items()],
            )

    def remove_before(self, number: int) -> None:
        """Remove the plays whose file is not there any more."""
        for name in ("plays", "seats", "texts", "damaged"):
            self._connection.execute(f"DELETE FROM {name} WHERE number < ?", (number,))

    def make_again(self) -> None:
        """Make empty tables in place of those that are there."""
        _make(self._connection)


def _opened(path: str) -> sqlite3.Connection:
    tables = sqlite3.connect(path, timeout=10.0, check_same_thread=False, isolation_level=None)
    try:
        tables.execute("PRAGMA journal_mode = WAL")
        tables.execute("PRAGMA synchronous = OFF")  # a cache may be lost with the power
        [(version,)] = tables.execute("PRAGMA user_version")
        if version != VERSION:
            _make(tables)
        tables.execute(_SET_VERSION)  # fails where this user may only read the file
    except BaseException:
        tables.close()
        raise
    return tables


def _make(tables: sqlite3.Connection) -> None:
    tables.execute("BEGIN IMMEDIATE")
    known = tables.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in known:
        tables.execute(f"DROP TABLE {name}")
    for statement in _TABLES.read_text(encoding="utf-8").split(";"):
        tables.execute(statement)
    tables.execute(_SET_VERSION)
    tables.execute("COMMIT")
