"""The resources that simultaneous plays share: time limits, slots, adapters and a temperature."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from msgspec.structs import replace as changed

from legos.arena.arena import Arena
from legos.arena.checks import check_attributes
from legos.arena.game import Game
from legos.arena.store import Stores
from legos.play.positions import Positions
from legos.play.watch import Watch
from legos.protocols import Seat
from legos.records.count import Count
from legos.records.episode import Task
from legos.sandbox.calls import CallPool


@dataclass(slots=True, eq=False)
class PlayContext:
    """Resources that simultaneous plays share, spawned plays included."""

    watch: Watch  # checks the time limits
    slots: asyncio.Semaphore  # limits the number of simultaneous plays
    calls: CallPool  # processes for ``Table.run``
    temperature: float | None = None  # of trained seats; None: that of each seat
    adapters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Policy -> adapter that answers for its trained seats; none: that of each seat."""
    copies: WeakKeyDictionary[Stores, Stores] | None = None
    """Stores of an arena -> those that its plays use; None: the arena's own."""
    count: Count = field(default_factory=Count)  # of the plays, without spawned ones
    _positions: WeakKeyDictionary[Arena, Positions] = field(
        default_factory=WeakKeyDictionary[Arena, Positions]
    )

    def positions(self, arena: Arena, game: Game) -> Positions:
        """The positions of an arena's game; its plays share them."""
        found = self._positions.get(arena)
        if found is None or found.game is not game:
            found = self._positions[arena] = Positions(game)
        return found

    def stores(self, arena: Arena) -> Stores:
        """The stores that the plays of an arena use."""
        if self.copies is None:
            return arena.stores
        if arena.stores not in self.copies:  # of a child that was given as an instance
            self.copies[arena.stores] = arena.stores.copy()
        return self.copies[arena.stores]

    def seats(self, arena: Arena, task: Task, seed: int) -> Mapping[str, Seat]:
        """The seats of one play, with the adapters and the temperature of the context."""
        return self.changed(arena.seated(task, seed))

    def changed(self, seats: Mapping[str, Seat]) -> Mapping[str, Seat]:
        """The same seats with the adapters and the temperature of the context."""
        if self.temperature is None and not self.adapters:
            return seats
        return {role: self._changed(seat) for role, seat in seats.items()}

    def _changed(self, seat: Seat) -> Seat:
        """Apply the adapter and the temperature to a trained seat."""
        if seat.policy is None:
            return seat
        temperature = seat.sampling.temperature if self.temperature is None else self.temperature
        return replace(
            seat,
            adapter=self.adapters.get(seat.policy, seat.adapter),
            sampling=changed(seat.sampling, temperature=temperature),
        )


@contextmanager
def play_context(
    arena: Arena,
    slots: asyncio.Semaphore,
    *,
    temperature: float | None = None,
    adapters: Mapping[str, str] | None = None,
    stores: Stores | None = None,
    count: Count | None = None,
) -> Generator[PlayContext]:
    """Within the block, plays of an arena can run, under its time limits.

    Raises:
        ArenaError: an attribute of the arena is invalid.
    """
    check_attributes(arena)
    with Watch(arena) as watch, closing(CallPool()) as calls:
        yield PlayContext(
            watch,
            slots,
            calls,
            temperature=temperature,
            adapters=adapters or {},
            copies=None if stores is None else WeakKeyDictionary({arena.stores: stores}),
            count=count or Count(),
        )
