"""The files of a run's plays: the newest in episodes.jsonl, older ones compressed beside it.

episodes.jsonl                  plays are appended here
episodes/FIRST-LAST.jsonl.gz    older plays, by their numbers, which count from 1

A full ``episodes.jsonl`` is renamed to ``episodes/FIRST-LAST.jsonl`` and then compressed, so that a
crash at any time loses no play and repeats none. Numbers stay when the oldest file is removed.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from legos.errors import CheckpointError
from legos.files.atomic import refusals_named, write_file
from legos.files.lines import NewLines, append_whole, rewind_lines

FILE_BYTES = 8 << 20  # size at which episodes.jsonl is full; read whole to show one of its plays
MOST_PLAYS = FILE_BYTES >> 6  # of one file; each takes more than 64 bytes
_NAME = re.compile(r"(\d+)-(\d+)\.jsonl(?:\.gz)?")


class DamagedPlaysError(CheckpointError):
    """The content of a file of plays is damaged."""


class OldPlays(NamedTuple):
    """A file of plays that is complete."""

    first: int  # number of its first play
    last: int
    path: Path

    def data(self) -> bytes:
        """Its lines.

        Raises:
            CheckpointError: it is damaged, or has been removed.
        """
        try:
            path = self.path if self.path.exists() else _packed(self.path)
            data = path.read_bytes()
            return gzip.decompress(data) if path.suffix == ".gz" else data
        except (OSError, EOFError, zlib.error) as error:
            damaged = not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile)
            kind = DamagedPlaysError if damaged else CheckpointError
            raise kind(
                f"{self.path} cannot be read: {error}; plays {self.first} to {self.last} are lost"
            ) from error

    def lines(self) -> list[tuple[int, bytes]]:
        """Each play with its number; raises as ``data``."""
        return list(enumerate(self.data().split(b"\n")[:-1], start=self.first))


class PlayFiles:
    """The files of the plays of one run.

    Attributes:
        live: ``episodes.jsonl``.
        folder: the folder of the older ones.
    """

    def __init__(self, live: Path) -> None:
        """Name the files, which need not exist yet."""
        self.live, self.folder = live, live.with_suffix("")

    def older(self) -> list[OldPlays]:
        """The files of older plays, oldest first."""
        paths = sorted(self.folder.glob("*.jsonl*"), reverse=True)
        found: dict[int, OldPlays] = {}
        for path in paths:  # of two files with the same plays, the one that is not compressed
            if match := _NAME.fullmatch(path.name):
                found[int(match[1])] = OldPlays(int(match[1]), int(match[2]), path)
        return [found[first] for first in sorted(found)]

    def first(self) -> int:
        """Number of the first play of ``live``."""
        return next((old.last + 1 for old in reversed(self.older())), 1)

    def oldest(self) -> int:
        """Number of the oldest play that is there."""
        return next((old.first for old in self.older()), 1)

    def last(self) -> int:
        """Number of the newest play; 0: there is none."""
        first, lines = self._newest()
        return first - 1 + len(lines)

    def line(self, number: int) -> tuple[int, bytes]:
        """One play, with its number; -1 is the newest.

        Raises:
            CheckpointError: there is no such play, or its file is damaged.
        """
        wanted = number if number >= 0 else number + self.last() + 1
        for found in self.lines([wanted]):
            return found
        last = self.last()
        known = (
            f"it has {self.oldest()} to {last} (-1 is the newest)" if last else "it has none yet"
        )
        raise CheckpointError(f"{self.live.parent} has no play {number}; {known}")

    def lines(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Some plays, without those that are not there; a file is read once for all in a row.

        Raises:
            CheckpointError: a file is damaged.
        """
        held: Sequence[tuple[int, bytes]] = ()
        for number in numbers:
            if not (held and held[0][0] <= number <= held[-1][0]):
                held = self._file_with(number)
            if held:
                yield from held[number - held[0][0] :][:1]

    def _file_with(self, number: int) -> Sequence[tuple[int, bytes]]:
        """All plays of the file that has a play; none if no file has it."""
        if number >= self.first():  # otherwise the newest file, which may be large, is not read
            first, lines = self._newest()
            if number >= first:
                return lines if number < first + len(lines) else ()
        found = (old for old in self.older() if old.first <= number <= old.last)
        return next((old.lines() for old in found), ())

    def _newest(self) -> tuple[int, list[tuple[int, bytes]]]:
        """Number of the first play of ``live``, and its plays."""
        while True:
            first, lines = self.first(), NewLines(self.live).read()
            if first == self.first():  # no file was full meanwhile
                return first, [(first - 1 + index, line) for index, line in lines]

    def append(self, data: bytes, *, full_at: int = FILE_BYTES) -> bool:
        """Append lines; returns whether the file was full, so that ``pack`` is due.

        Args:
            data: complete lines.
            full_at: size in bytes from which on the next line starts a new file.

        Raises:
            CheckpointError: the lines cannot be written.
        """
        append_whole(self.live, data)
        if self.live.stat().st_size < full_at:
            return False
        count, first = self.live.read_bytes().count(b"\n"), self.first()
        with refusals_named(self.folder):
            self.folder.mkdir(exist_ok=True)
            self.live.rename(self.folder / f"{first}-{first + count - 1}.jsonl")
        return True

    def pack(self, budget_bytes: int) -> None:
        """Compress what is not yet, and remove the oldest files that exceed the budget.

        The newest of them always stays, because its name numbers the plays that follow.

        Raises:
            CheckpointError: a file cannot be written.
        """
        for old in self.older():
            if old.path.suffix != ".gz":
                packed = gzip.compress(old.data(), compresslevel=6, mtime=0)
                write_file(_packed(old.path), packed)
                old.path.unlink()
        with refusals_named(self.folder):
            sizes = {old.path: old.path.stat().st_size for old in self.older()}
            total = sum(sizes.values())
            for path in [*sizes][:-1]:
                if total > budget_bytes:
                    path.unlink()
                    total -= sizes[path]

    def rewind(self, step: int, *, evaluated: int) -> None:
        """Remove the plays of later steps; arguments and errors as for ``rewind_lines``.

        They were written last, so an older file is read only where nothing of the newer is left.
        """
        rewind_lines(self.live, step, evaluated=evaluated)
        while (older := self.older()) and not (self.live.exists() and self.live.stat().st_size):
            *_, newest = older
            plain = newest.path.with_name(newest.path.name.removesuffix(".gz"))
            with refusals_named(plain):
                if plain != newest.path:
                    write_file(plain, newest.data())
                _packed(plain).unlink(missing_ok=True)
                plain.replace(self.live)
            rewind_lines(self.live, step, evaluated=evaluated)


def _packed(path: Path) -> Path:
    """Where the compressed form of a file is."""
    return path.with_name(f"{path.name.removesuffix('.gz')}.gz")


class NewPlays:
    """Reads the lines of a run's plays, and then those that it adds.

    Attributes:
        seen: number of the newest play that was read.
        rewritten: whether the last call found that a resumed run had removed plays.
    """

    def __init__(self, live: Path, *, seen: int = 0) -> None:
        """Begin after a play; the files need not exist yet."""
        self._files = PlayFiles(live)
        self._first: int | None = None  # number of the first play of the live file
        self._live: NewLines = NewLines(live)
        self.seen: int = seen
        self.rewritten = False

    def files(self, *, skip_damaged: bool = False) -> Iterator[list[tuple[int, bytes]]]:
        """What ``read`` returns, one file after the other, so that memory holds one of them.

        Args:
            skip_damaged: whether the lines of a damaged file are empty, and no error.

        Raises:
            CheckpointError: a file cannot be read.
        """
        for old in self._files.older():
            if old.last > self.seen:
                try:
                    lines = old.lines()
                except DamagedPlaysError:
                    if not skip_damaged or old.last - old.first > MOST_PLAYS:
                        raise
                    lines = [(number, b"") for number in range(old.first, old.last + 1)]
                new = [(number, line) for number, line in lines if number > self.seen]
                self.seen = old.last
                yield new
        first = self._files.first()
        live: NewLines = self._live if first == self._first else NewLines(self._files.live)
        lines = [(first - 1 + index, line) for index, line in live.read()]
        if first > self.seen + 1 or self._files.first() != first:  # a file was full meanwhile
            yield from self.files(skip_damaged=skip_damaged)
            return
        self.rewritten = live.rewritten or first < (self._first or 1)
        seen, self.seen = self.seen, first - 1 + live.seen
        self._first, self._live = first, live
        if not self.rewritten:
            yield [(number, line) for number, line in lines if number > seen]

    def read(self, *, last: int | None = None) -> list[tuple[int, bytes]]:
        """The plays since the last call, with their numbers.

        Where a resumed run has removed plays, those that are left count as seen.

        Args:
            last: return at most so many, the newest.

        Raises:
            CheckpointError: a file cannot be read.
        """
        if last is not None:
            self.seen = max(self.seen, self._files.last() - last)
        return [line for lines in self.files() for line in lines]
