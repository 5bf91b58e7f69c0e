"""An index of the plays of a run, for search: a cache beside the run, made again where it is wrong.

Plays that a resumed run has made again, and the cache of another run of the
same name, are recognised by the newest indexed line.
"""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from legos.run.folder import RunFolder
from legos.run.play_files import NewPlays
from legos.run.text_blocks import add_texts, numbers_having

__all__ = ["FoundPlays", "IndexedPlay", "PlayIndex", "Range"]

Range = float | tuple[float | None, float | None]
"""A value, or the lowest and the highest one; None: no bound."""

VERSION = 1  # of the tables; a cache with another one is made again
BATCH = 2000  # plays of one transaction
_TABLES = """
    CREATE TABLE plays (number INTEGER PRIMARY KEY, step INT, evaluation INT, arena TEXT, task TEXT,
        level TEXT, failure TEXT, tokens INT, turns INT);
    CREATE TABLE seats (number INT, role TEXT, seat TEXT, policy TEXT, reward REAL);
    CREATE TABLE texts (first INTEGER PRIMARY KEY, numbers BLOB, ends BLOB, text BLOB);
    CREATE TABLE newest (number INT, crc INT, damaged INT);
    INSERT INTO newest VALUES (0, 0, 0);
    CREATE INDEX by_task ON plays (task, step);
    CREATE INDEX by_number ON seats (number);
    CREATE INDEX by_reward ON seats (role, reward, number);
    CREATE INDEX by_seat ON seats (seat, number);
"""


class _Turn(Struct, gc=False):
    said: str
    asked: str
    token_ids: Raw = Raw(b"[]")
    reward: float | None = None


class _Seat(Struct):
    role: str
    seat: str
    policy: str | None
    turns: list[_Turn]


class _Play(Struct):
    arena: str
    task: str
    rewards: dict[str, float]
    error: str | None
    void: bool
    notes: list[str]
    seats: list[_Seat]
    children: list["_Play"]
    level: str | None = None
    failure: str | None = None
    step: int | UnsetType = UNSET
    evaluation: bool | UnsetType = UNSET


class IndexedPlay(NamedTuple):
    """What the index knows of a play; spawned plays are counted with it."""

    number: int
    step: int | None
    evaluation: bool
    arena: str
    task: str
    level: str | None
    failure: str | None  # "failed", "timed_out", "endpoint" or "void"; None: it ended
    tokens: int  # sampled ones
    turns: int
    seats: Sequence[tuple[str, str, float | None]]  # role, who sat there, and the return


class FoundPlays(NamedTuple):
    """The result of a search."""

    numbers: Sequence[int]  # of all plays that match, in the order that was asked for
    plays: Sequence[IndexedPlay]  # those of one page


class PlayIndex:
    """Searches the plays of a run; any thread may call it.

    Attributes:
        damaged: number of lines that are no plays.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Open the cache of a run, or make one: in memory where no file can be written."""
        self._folder = folder
        self._path = folder.path.resolve().with_name(f".{folder.path.resolve().name}.plays.sqlite3")
        self._lock = threading.RLock()
        self._new = NewPlays(folder.episodes)
        self.damaged = 0
        try:
            self._tables = self._opened(f"{self._path}")
        except sqlite3.DatabaseError:  # damaged, or it cannot be written
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            try:
                self._tables = self._opened(f"{self._path}")
            except sqlite3.DatabaseError:
                self._tables = self._opened(":memory:")

    def close(self) -> None:
        """Close the cache."""
        with self._lock:
            self._tables.close()

    def refresh(self) -> int:
        """Add the plays that the run has written since; returns the number of its newest play.

        Raises:
            CheckpointError: a file of plays cannot be read.
        """
        with self._lock:
            [(newest, crc, self.damaged)] = self._tables.execute("SELECT * FROM newest")
            if newest != self._new.seen:
                self._new = NewPlays(self._folder.episodes, seen=newest)
                if newest and crc != _crc(self._folder.plays.lines([newest])):
                    return self._again()
            oldest = self._folder.plays.oldest()
            for table in ("plays", "seats"):
                self._tables.execute(f"DELETE FROM {table} WHERE number < ?", (oldest,))
            for lines in self._new.files():
                for start in range(0, len(lines), BATCH):
                    self._add(lines[start : start + BATCH])
            return self._again() if self._new.rewritten else self._new.seen

    def search(
        self,
        *,
        role: str | None = None,
        reward: Range | None = None,
        seat: str | None = None,
        arena: str | None = None,
        task: str | None = None,
        step: Range | None = None,
        evaluation: bool | None = None,
        failure: str | bool | None = None,
        tokens: Range | None = None,
        text: str | None = None,
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
            evaluation: whether an evaluation played it.
            failure: kind of failure, or "void"; True: any; False: none.
            tokens: number of sampled tokens.
            text: a part of a question, an answer, a note or an error; upper case counts as lower.
            order: "newest", "oldest", "longest" (by tokens), "best" or "worst" (by ``reward``).
            page: which of the found plays are returned with what the index knows of them.

        Raises:
            ValueError: there is no such order.
        """
        if order not in _ORDERS:
            raise ValueError(f"order is {order!r}; expected one of {', '.join(_ORDERS)}")
        wanted = _Conditions()
        for column, value in (("arena", arena), ("task", task), ("evaluation", evaluation)):
            wanted.equal(f"plays.{column}", value)
        wanted.within("plays.step", step)
        wanted.within("plays.tokens", tokens)
        if isinstance(failure, bool):
            wanted.texts.append(f"plays.failure IS {'NOT ' if failure else ''}NULL")
        else:
            wanted.equal("plays.failure", failure)
        of_seat = _Conditions()
        of_seat.equal("role", role)
        of_seat.equal("seat", seat)
        of_seat.within("reward", reward)
        if order in ("best", "worst") or reward is not None:
            of_seat.texts += ["policy IS NOT NULL"] if role is None else []
        source = "plays"
        if of_seat.texts:
            best = "MIN" if order == "worst" else "MAX"
            source += (
                f" JOIN (SELECT number AS n, {best}(reward) AS reward FROM seats"
                f" WHERE {' AND '.join(of_seat.texts)} GROUP BY number) ON n = number"
            )
        where = f" WHERE {' AND '.join(wanted.texts)}" if wanted.texts else ""
        query = f"SELECT number FROM {source}{where} ORDER BY {_ORDERS[order]}"
        with self._lock:
            rows = self._tables.execute(query, of_seat.values + wanted.values)
            numbers = [number for (number,) in rows]
            if text:
                having = numbers_having(self._tables, text)
                numbers = [number for number in numbers if number in having]
            return FoundPlays(numbers, self._known(numbers[page]))

    def _opened(self, path: str) -> sqlite3.Connection:
        tables = sqlite3.connect(path, timeout=10.0, check_same_thread=False, isolation_level=None)
        try:
            tables.execute("PRAGMA journal_mode = WAL")
            tables.execute("PRAGMA synchronous = OFF")  # a cache may be lost with the power
            [(version,)] = tables.execute("PRAGMA user_version")
            if version != VERSION:
                _make_again(tables)
        except BaseException:
            tables.close()
            raise
        return tables

    def _again(self) -> int:
        """Make the index again, because plays were removed."""
        _make_again(self._tables)
        self._new = NewPlays(self._folder.episodes)
        return self.refresh()

    def _add(self, lines: Sequence[tuple[int, bytes]]) -> None:
        plays: list[tuple[Any, ...]] = []
        seats: list[tuple[Any, ...]] = []
        texts: list[tuple[int, str]] = []
        damaged = 0
        for number, line in lines:
            try:
                play = _decoder.decode(line)
            except (ValueError, RecursionError):
                damaged += 1
                continue
            found = _Found()
            found.add(play, number)
            failure = ("void" if play.void else None) if play.error is None else play.failure
            plays.append(
                (
                    number,
                    None if play.step is UNSET else play.step,
                    play.evaluation is True,
                    play.arena,
                    play.task,
                    play.level,
                    "failed" if failure is None and play.error is not None else failure,
                    found.tokens,
                    found.turns,
                )
            )
            seats += found.seats
            texts.append((number, "\n".join(found.texts)))
        number, line = lines[-1]
        tables = self._tables
        tables.execute("BEGIN IMMEDIATE")
        try:
            [(newest,)] = tables.execute("SELECT number FROM newest")
            if newest < lines[0][0]:  # another process may have added them meanwhile
                tables.executemany(f"INSERT INTO plays VALUES ({','.join('?' * 9)})", plays)
                tables.executemany("INSERT INTO seats VALUES (?,?,?,?,?)", seats)
                add_texts(tables, texts)
                self.damaged += damaged
                crc = crc32(line)
                tables.execute(
                    "UPDATE newest SET number = ?, crc = ?, damaged = ?",
                    (number, crc, self.damaged),
                )
            tables.execute("COMMIT")
        except BaseException:
            tables.execute("ROLLBACK")
            raise

    def _known(self, numbers: Sequence[int]) -> list[IndexedPlay]:
        marks = ",".join("?" * len(numbers))
        seats: dict[int, list[tuple[str, str, float | None]]] = {number: [] for number in numbers}
        query = f"SELECT number, role, seat, reward FROM seats WHERE number IN ({marks})"
        for number, *seat in self._tables.execute(query, numbers):
            seats[number].append(tuple(seat))
        rows = self._tables.execute(f"SELECT * FROM plays WHERE number IN ({marks})", numbers)
        known = {
            row[0]: IndexedPlay._make((*row[:2], bool(row[2]), *row[3:], seats[row[0]]))
            for row in rows
        }
        return [known[number] for number in numbers]


_ORDERS = {
    "newest": "number DESC",
    "oldest": "number",
    "longest": "tokens DESC, number DESC",
    "best": "reward IS NULL, reward DESC, number DESC",
    "worst": "reward IS NULL, reward, number DESC",
}
_decoder = msgspec.json.Decoder(_Play)


def _make_again(tables: sqlite3.Connection) -> None:
    """Make empty tables in place of those that are there."""
    tables.execute("BEGIN IMMEDIATE")
    for name in ("plays", "seats", "texts", "newest"):
        tables.execute(f"DROP TABLE IF EXISTS {name}")
    for statement in _TABLES.split(";"):
        tables.execute(statement)
    tables.execute(f"PRAGMA user_version = {VERSION}")
    tables.execute("COMMIT")


def _crc(lines: Iterable[tuple[int, bytes]]) -> int:
    """That of one line; -1: there is none."""
    return next((crc32(line) for _, line in lines), -1)


class _Found:
    """What is collected of a play and those that it spawned."""

    def __init__(self) -> None:
        self.tokens = self.turns = 0
        self.seats: list[tuple[Any, ...]] = []
        self.texts: dict[str, None] = {}  # each once

    def add(self, play: _Play, number: int) -> None:
        for seat in play.seats:
            reward = play.rewards.get(seat.role)
            for turn in seat.turns:
                self.turns += 1
                if len(turn.token_ids) > 2:
                    self.tokens += bytes(turn.token_ids).count(b",") + 1
                self.texts[turn.asked] = self.texts[turn.said] = None
                if turn.reward is not None:
                    reward = (reward or 0.0) + turn.reward
            self.seats.append((number, seat.role, seat.seat, seat.policy, reward))
        self.texts.update(dict.fromkeys(play.notes))
        if play.error is not None:
            self.texts[play.error] = None
        for child in play.children:
            self.add(child, number)


class _Conditions:
    """Conditions of SQL and their values."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.values: list[object] = []

    def equal(self, column: str, value: object) -> None:
        if value is not None:
            self.texts.append(f"{column} = ?")
            self.values.append(value)

    def within(self, column: str, bounds: Range | None) -> None:
        low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
        for sign, bound in ((">=", low), ("<=", high)):
            if bound is not None:
                self.texts.append(f"{column} {sign} ?")
                self.values.append(bound)
