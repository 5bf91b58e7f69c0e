"""Matchmakers that use the seats of the arena, as they are or with other players in them."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from legos.protocols import Matchmaker, Seat, Seating
from legos.records.episode import Task


class ArenaSeats(Matchmaker):
    """Uses the seats of the arena, by default the policy in every seat."""

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """Return ``Arena.seats``; the seed is not used."""
        del seed
        return arena.seats(task)


class SeatOverride:
    """Changes each seat of a matchmaker by a function of the seat."""

    def __init__(
        self, change: Callable[[Seat], Seat], matchmaker: Matchmaker | None = None
    ) -> None:
        """Take the function, and the matchmaker; None: the seats of the arena."""
        self._change = change
        self._matchmaker = inner = matchmaker or ArenaSeats()
        self.record, self.state, self.restore = inner.record, inner.state, inner.restore
        self.seating = inner.seating

    def evaluation(self) -> "SeatOverride":
        """The same change of the seats of evaluations."""
        return SeatOverride(self._change, self._matchmaker.evaluation())

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """Return the changed seats."""
        seats = self._matchmaker.seats(arena, task, seed)
        return {role: self._change(seat) for role, seat in seats.items()}


def renamed(names: Mapping[str, str], seat: Seat) -> Seat:
    """A seat that names its adapter as the engine does; bound to the names, for ``SeatOverride``.

    Args:
        names: name of an adapter as seats have it -> its name in the engine.
        seat: the seat.
    """
    return replace(seat, adapter=names.get(seat.adapter, seat.adapter))
