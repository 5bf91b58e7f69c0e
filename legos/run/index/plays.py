"""An index of the plays of a run, for search: a cache beside the run, made again where it is wrong.

Plays that a resumed run has made again, and the cache of another run of the
same name, are recognised by the newest indexed line.
"""

import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple
from zlib import crc32

from legos.run.folder import RunFolder
from legos.run.index.rows import IndexedPlay, IndexedSeat, NewRows, searched
from legos.run.index.tables import IndexTables
from legos.run.play_files import DamagedPlaysError, NewPlays

Range = float | tuple[float | None, float | None]
"""A value, or the lowest and the highest one; None: no bound."""

BATCH = 2000  # plays of one transaction
PARTS = 200  # of a run, in each of which a position has one probability of a move
ORDERS = {
    "newest": "number DESC",
    "oldest": "number",
    "longest": "tokens DESC, number DESC",
    "shortest": "tokens, number",
    "most turns": "turns DESC, number DESC",
    "fewest turns": "turns, number",
    "best": "reward IS NULL, reward DESC, number DESC",
    "worst": "reward IS NULL, reward, number",
}
"""Name of an order -> how it is written in SQL."""


class FoundPlays(NamedTuple):
    """The result of a search."""

    numbers: Sequence[int]  # of all plays that match, in the order that was asked for
    plays: Sequence[IndexedPlay]  # those of one page


class PositionMoves(NamedTuple):
    """How often and with which probability moves were sampled in a position."""

    arena: str
    role: str
    asked: str  # the question that shows the position
    num_moves: int  # that were sampled
    moves: dict[str, list[tuple[int, float]]]  # move -> some steps, and its mean probability there


class PlayIndex:
    """Searches the plays of a run; any thread may call it."""

    def __init__(self, folder: RunFolder) -> None:
        """Take the folder of a run; nothing is opened yet."""
        self._folder = folder
        self._lock = threading.RLock()
        self._new = NewPlays(folder.episodes)
        self._oldest = 1
        self._open: IndexTables | None = None

    @property
    def _tables(self) -> IndexTables:
        """The cache of the run, or a new one: in memory where no file can be written."""
        if self._open is None:
            path = self._folder.path.resolve()
            self._open = IndexTables(path.with_name(f".{path.name}.plays.sqlite3"))
        return self._open

    def close(self) -> None:
        """Close the cache; the next call opens it again."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open = None

    @property
    def damaged(self) -> list[int]:
        """Numbers of lines that are no plays; none before the cache is opened."""
        with self._lock:
            rows = self._rows("SELECT number FROM damaged") if self._open else ()
            return [number for (number,) in rows]

    def refresh(self, seconds: float | None = None) -> int:
        """Add the plays that the run has written since.

        Args:
            seconds: time after which the rest is left to the next call; None: none is left.

        Returns:
            Number of the newest play that was added.

        Raises:
            CheckpointError: a file of plays cannot be read.
        """
        until = None if seconds is None else monotonic() + seconds
        with self._lock:
            try:
                return self._refreshed(until)
            except sqlite3.DatabaseError as error:
                self._renew(error)
                return self._refreshed(until)

    def _refreshed(self, until: float | None) -> int:
        """Add new plays until a time; see ``refresh``."""
        newest, crc = self._tables.newest
        if newest != self._new.seen:
            self._new = NewPlays(self._folder.episodes, seen=newest)
            if newest and crc != _crc(self._folder.plays.lines([newest])):
                return self._again(until)
        oldest = self._folder.plays.oldest()
        if oldest != self._oldest:
            self._tables.remove_before(oldest)
            self._oldest = oldest
        for lines in self._new.files(skip_damaged=True):
            for start in range(0, len(lines), BATCH):
                self._add(lines[start : start + BATCH])
                if until is not None and monotonic() > until:
                    return self._tables.newest[0]
        return self._again(until) if self._new.rewritten else self._new.seen

    def search(
        self,
        *,
        role: str | None = None,
        reward: Range | None = None,
        seat: str | None = None,
        arena: str | None = None,
        task: str | None = None,
        step: Range | None = None,
        seed: str | None = None,
        evaluation: bool | None = None,
        failure: str | bool | None = None,
        tokens: Range | None = None,
        text: str | Sequence[str] | None = None,
        order: str = "newest",
        page: slice = slice(50),
    ) -> FoundPlays:
        """Plays that match everything that is not None.

        Args:
            role: a role of the play.
            reward: return of a seat, or of that role; without a role, of a trained seat.
            seat: who sat in a seat of the play, or in that role: "policy", a bot, an older adapter.
            arena: name of the arena.
            task: id of the task.
            step: optimiser step.
            seed: seed of the task.
            evaluation: whether an evaluation played it.
            failure: kind of failure, or "void"; True: any; False: none.
            tokens: number of sampled tokens.
            text: a part of the task's id, a question, an answer, a note or an error, or several of
                which a play must have each; upper case counts as lower.
            order: one of ``ORDERS``; "longest" is by tokens, and "best" by ``reward``.
            page: which of the found plays are returned with what the index knows of them.

        Raises:
            ValueError: there is no such order.
        """
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}; expected one of {', '.join(ORDERS)}")
        known = {"arena": arena, "task": task, "seed": seed, "evaluation": evaluation}
        known["(failure IS NOT NULL)" if isinstance(failure, bool) else "failure"] = failure
        wanted = [*_equal(known), *_within("step", step), *_within("tokens", tokens)]
        for part in (text,) if isinstance(text, str) else text or ():
            having = "number IN (SELECT number FROM texts WHERE instr(text, ?))"
            wanted.append((having, searched(part)))
        of_seat = [*_equal({"role": role, "seat": seat}), *_within("reward", reward)]
        if role is None and (order in ("best", "worst") or reward is not None):
            of_seat.append(("(policy IS NOT NULL) = ?", True))
        source = "plays"
        if of_seat:
            best = "MIN" if order == "worst" else "MAX"
            source += (
                f" JOIN (SELECT number AS n, {best}(reward) AS reward FROM seats"
                f" WHERE {_all(of_seat)} GROUP BY number) ON n = number"
            )
        query = f"SELECT number FROM {source} WHERE {_all(wanted)} ORDER BY {ORDERS[order]}"
        values = [value for _, value in (*of_seat, *wanted)]
        numbers = [number for (number,) in self._rows(query, values)]
        return FoundPlays(numbers, self.known(numbers[page]))

    def known(self, numbers: Sequence[int]) -> list[IndexedPlay]:
        """What the index knows of some plays, in their order, without those that it has not."""
        listed = [json.dumps(list(numbers))]
        seats: defaultdict[int, list[IndexedSeat]] = defaultdict(list)
        among = "WHERE number IN (SELECT value FROM json_each(?))"
        for number, *seat in self._rows(f"SELECT * FROM seats {among} ORDER BY rowid", listed):
            seats[number].append(IndexedSeat._make(seat))
        found = {
            row[0]: IndexedPlay._make((*row[:2], bool(row[2]), *row[3:], seats[row[0]]))
            for row in self._rows(f"SELECT * FROM plays {among}", listed)
        }
        return [found[number] for number in numbers if number in found]

    def named(self) -> dict[str, list[str]]:
        """The arenas, the roles and the players that occur: "arenas", "roles" and "seats"."""
        columns = (("arena", "plays"), ("role", "seats"), ("seat", "seats"))
        return {
            f"{column}s": [
                name for (name,) in self._rows(f"SELECT DISTINCT {column} FROM {table} ORDER BY 1")
            ]
            for column, table in columns
        }

    def first_of_steps(self, arena: str, task: str) -> list[int]:
        """Number of the first play of a task in each step, and in each evaluation, in order."""
        query = (
            "SELECT MIN(number) FROM plays WHERE arena = ? AND task = ? AND failure IS NULL"
            " GROUP BY step, evaluation ORDER BY 1"
        )
        return [number for (number,) in self._rows(query, (arena, task))]

    def most_played_tasks(self, most: int) -> list[tuple[str, str]]:
        """Arena and task of those that were played in most steps, of which each has two.

        Those of games are left out: ``most_played_positions`` has their moves.
        """
        query = (
            "SELECT arena, task FROM plays WHERE step IS NOT NULL AND failure IS NULL"
            " AND arena NOT IN (SELECT arena FROM positions) GROUP BY arena, task"
            " HAVING COUNT(DISTINCT step) > 1 ORDER BY COUNT(DISTINCT step) DESC, 1, 2 LIMIT ?"
        )
        return self._rows(query, (most,))

    def most_played_positions(self, most: int) -> list[PositionMoves]:
        """The positions of games in which trained seats have moved most.

        Where a position was met in many steps, probabilities are means of as many steps in a row,
        under the last of them.
        """
        query = "SELECT * FROM positions ORDER BY count DESC, arena, role, asked LIMIT ?"
        of_moves = (
            "SELECT move, MAX(step), SUM(sum) / SUM(count) FROM moves,"
            f" (SELECT MAX(step) / {PARTS} + 1 AS steps FROM moves WHERE position = ?1)"
            " WHERE position = ?1 GROUP BY move, step / steps ORDER BY 1, 2"
        )
        found: list[PositionMoves] = []
        for key, *position in self._rows(query, (most,)):
            moves: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
            for move, step, probability in self._rows(of_moves, (key,)):
                moves[move].append((step, probability))
            found.append(PositionMoves(*position, moves=dict(moves)))
        return found

    def sampled_moves(self, step: int, arena: str, role: str, asked: str) -> dict[str, float]:
        """Move -> mean probability with which trained seats sampled it in a position in a step."""
        query = (
            "SELECT move, sum / moves.count FROM moves JOIN positions ON position = id"
            " WHERE step = ? AND arena = ? AND role = ? AND asked = ?"
        )
        return dict(self._rows(query, (step, arena, role, asked)))

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock:
            try:
                return list(self._tables.rows(query, values))
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # the query is too large
                    raise
                self._renew(error)
                self.refresh()
                return list(self._tables.rows(query, values))

    def _renew(self, error: sqlite3.DatabaseError) -> None:
        """Begin with empty tables, because those that were open have failed."""
        self._tables.renew(error)
        self._new = NewPlays(self._folder.episodes)

    def _again(self, until: float | None) -> int:
        """Make the index again, because plays were removed."""
        self._tables.make_again()
        self._new = NewPlays(self._folder.episodes)
        return self._refreshed(until)

    def _add(self, lines: Sequence[tuple[int, bytes]]) -> None:
        rows = NewRows()
        for number, line in lines:
            rows.add(number, line)
        self._tables.add(rows, lines[0][0], lines[-1][0], crc32(lines[-1][1]))


def _crc(lines: Iterable[tuple[int, bytes]]) -> int:
    """That of one line, which is empty in a damaged file; -1: there is none."""
    try:
        return next((crc32(line) for _, line in lines), -1)
    except DamagedPlaysError:
        return crc32(b"")


_Condition = tuple[str, object]
"""A condition of SQL, and its value."""


def _equal(values: Mapping[str, object]) -> list[_Condition]:
    return [(f"{column} = ?", value) for column, value in values.items() if value is not None]


def _within(column: str, bounds: Range | None) -> list[_Condition]:
    low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
    limits = ((">=", low), ("<=", high))
    return [(f"{column} {sign} ?", bound) for sign, bound in limits if bound is not None]


def _all(conditions: Sequence[_Condition]) -> str:
    return " AND ".join(text for text, _ in conditions) or "TRUE"
