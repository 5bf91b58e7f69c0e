"""The plays of a run as rows that can be searched."""

from collections import defaultdict
from time import monotonic

from legos.errors import CheckpointError
from legos.page.play_row import SORTS, PlayQuery, Row, row_of
from legos.page.policy import Positions
from legos.run.episodes import StoredEpisode, parse_episode
from legos.run.folder import RunFolder
from legos.run.play_files import NewPlays

__all__ = ["PlayTable"]

_READ_S = 0.25  # seconds that one request reads for
_AT_FIRST = 500  # plays that the first request reads at most


class _Named:
    """What the rows of a table name."""

    def __init__(self) -> None:
        self.arenas: set[str] = set()
        self.roles: set[str] = set()
        self.seats: set[str] = set()


class PlayTable:
    """Reads the plays of a run, the newest first, a little with each request.

    Attributes:
        damaged: numbers of lines that are no play.
        problem: why the plays cannot be read; None: they can.
        positions: the moves of its games.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Begin without having read anything; the file need not exist yet."""
        self._path = folder.episodes
        self.problem: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._new: NewPlays | None = None  # None: only the newest plays were read, or none
        self._begun = False
        self._rows: dict[int, Row] = {}
        self._groups: defaultdict[object, list[int]] = defaultdict(list)
        self._tasks: defaultdict[object, list[int]] = defaultdict(list)
        self._named = _Named()
        self.positions = Positions()
        self._ordered: list[Row] = []  # by number; empty where it is to be made anew
        self._pending: list[tuple[int, bytes]] = []
        self.damaged: list[int] = []

    @property
    def waiting(self) -> int:
        """Number of plays that are known to be still unread; at least 1 where there may be more."""
        return len(self._pending) + (self._new is None and len(self._rows) >= _AT_FIRST)

    def read(self, seconds: float = _READ_S) -> None:
        """Read what is new, for so many seconds at most."""
        try:
            self._pending += self._newly_written()
            self.problem = None
        except CheckpointError as error:
            self.problem = str(error)
        until = monotonic() + seconds
        while self._pending and monotonic() < until:
            number, line = self._pending.pop()
            if number in self._rows or number in self.damaged:
                continue
            try:
                self._add(number, parse_episode(line))
            except (ValueError, RecursionError):
                self.damaged.append(number)

    def _newly_written(self) -> list[tuple[int, bytes]]:
        """Lines that were not read yet; at first only the newest, so that some are soon shown."""
        if self._new is None and not self._begun:
            self._begun = True
            return NewPlays(self._path).read(last=_AT_FIRST)
        self._new = self._new or NewPlays(self._path)
        found = self._new.read()
        if self._new.rewritten:  # a resumed run has removed plays
            self._reset()
            self._begun, self._new = True, NewPlays(self._path)
            found = self._new.read()
        return found

    def _add(self, number: int, episode: StoredEpisode) -> None:
        row = row_of(number, episode)
        self._rows[number] = row
        self.positions.add(episode)
        self._groups[row.group].append(row.number)
        self._tasks[row.arena, row.task].append(row.number)
        self._named.arenas.add(row.arena)
        self._named.roles.update(row.rewards)
        self._named.seats.update(row.seats.values())
        self._ordered = []

    def search(
        self, query: PlayQuery, *, sort: str = "number", descending: bool = True
    ) -> list[Row]:
        """The plays that a query matches.

        Args:
            query: what is looked for.
            sort: one of ``SORTS``.
            descending: whether the largest comes first.
        """
        found = self.rows()
        for test in query.tests():
            found = [row for row in found if test(row)]
        if sort == "number":
            return found[::-1] if descending else found
        return sorted(found, key=SORTS[sort], reverse=descending)

    def rows(self) -> list[Row]:
        """The plays that were read, in their order."""
        if not self._ordered:
            self._ordered = [self._rows[number] for number in sorted(self._rows)]
        return self._ordered

    def named(self) -> dict[str, list[str]]:
        """The arenas, roles and players that occur."""
        return {name: sorted(found) for name, found in vars(self._named).items()}

    def group_of(self, number: int) -> list[Row]:
        """The plays that are compared with a play, itself included."""
        row = self._rows.get(number)
        return [] if row is None else self._listed(self._groups[row.group])

    def same_task(self, number: int, *, most: int) -> list[Row]:
        """A play of the same task at each other step, or at some of them that lie apart."""
        row = self._rows.get(number)
        if row is None:
            return []
        plays = self._listed(self._tasks[row.arena, row.task])
        steps = {(play.step, play.evaluation): play for play in reversed(plays)}
        steps.pop((row.step, row.evaluation))
        found = sorted(steps.values(), key=lambda play: play.number)
        return found[:: -(-len(found) // most) or 1]

    def _listed(self, numbers: list[int]) -> list[Row]:
        return [self._rows[number] for number in sorted(numbers)]
