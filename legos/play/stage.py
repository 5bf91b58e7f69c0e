"""The resources that simultaneous plays share: time limits, slots, adapters and a temperature."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from msgspec.structs import replace as changed

from legos.arena.checks import check_attributes
from legos.arena.game import Game
from legos.arena.playable import Playable
from legos.arena.store import Stores
from legos.play.positions import Positions
from legos.play.watch import Watch
from legos.protocols import Seat
from legos.records.episode import Task
from legos.sandbox.calls import CallPool

__all__ = ["Stage", "stage_of"]

MAX_GAMES = 8  # games whose positions are kept; plays may spawn a new one each


class Stage:
    """Resources that simultaneous plays share, spawned plays included.

    Attributes:
        watch: watches the plays for their time limits.
        slots: one slot for each running play.
        calls: processes for ``Table.run``.
        stores: stores that plays use; None: those of each arena.
    """

    def __init__(
        self,
        watch: Watch,
        slots: asyncio.Semaphore,
        calls: CallPool,
        *,
        temperature: float | None = None,
        adapters: Mapping[str, str] | None = None,
        stores: Stores | None = None,
    ) -> None:
        """Prepare the resources.

        Args:
            watch: watches the plays.
            slots: limits the number of simultaneous plays.
            calls: processes for ``Table.run``.
            temperature: temperature of trained seats; None: that of each seat.
            adapters: policy -> adapter that answers for its trained seats; None: that of each seat.
            stores: stores that plays use; None: those of each arena.
        """
        self.watch = watch
        self.slots = slots
        self.calls = calls
        self.stores = stores
        self._temperature = temperature
        self._adapters = adapters or {}
        self._positions: list[tuple[Playable, Game, Positions]] = []  # those used last at the end

    def positions(self, arena: Playable, game: Game) -> Positions:
        """The positions of an arena's game; its plays share them, unless many games came since."""
        kept = self._positions
        at = next((n for n, (a, g, _) in enumerate(kept) if a is arena and g is game), None)
        found = (arena, game, Positions(game)) if at is None else kept.pop(at)
        kept.append(found)
        del kept[:-MAX_GAMES]
        return found[2]

    def seats(self, arena: Playable, task: Task, seed: int) -> dict[str, Seat]:
        """The seats of one play, with the adapters and the temperature of the stage."""
        seats = arena.seated(task, seed)
        if self._temperature is None and not self._adapters:
            return dict(seats)
        return {role: self._changed(seat) for role, seat in seats.items()}

    def _changed(self, seat: Seat) -> Seat:
        """Apply the adapter and temperature of the stage to a trained seat."""
        if seat.policy is None:
            return seat
        temperature = seat.sampling.temperature if self._temperature is None else self._temperature
        return replace(
            seat,
            adapter=self._adapters.get(seat.policy, seat.adapter),
            sampling=changed(seat.sampling, temperature=temperature),
        )


@contextmanager
def stage_of(
    arena: Playable,
    slots: asyncio.Semaphore,
    *,
    temperature: float | None = None,
    adapters: Mapping[str, str] | None = None,
    stores: Stores | None = None,
) -> Generator[Stage]:
    """Within the block, plays of an arena can run, under its time limits.

    Raises:
        ArenaError: an attribute of the arena is invalid.
    """
    check_attributes(arena)
    with Watch(arena) as watch, closing(CallPool()) as calls:
        yield Stage(watch, slots, calls, temperature=temperature, adapters=adapters, stores=stores)
