"""Adapters of other runs that the seats of an arena name, such as ``duel-1@10``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from legos.apps.adapters import named_adapter
from legos.arena.arena import Arena
from legos.arena.matchmaker import ArenaSeats, SeatOverride
from legos.errors import CheckpointError
from legos.play.cursor import plays_from
from legos.protocols import Seat
from legos.records.names import BASE
from legos.weights.adapter import Adapter

__all__ = ["load_seated"]

PLAYS = 16  # plays of an arena whose seats are looked at


def load_seated(arenas: Iterable[Arena], load: Callable[[Adapter], object]) -> None:
    """Make the adapters live that the untrained seats of the first plays name by their run.

    A name that is neither a run nor an adapter folder is left to the engine, in which an adapter of
    that name may be live.

    Args:
        arenas: arenas that ask the engine.
        load: makes an adapter live in the engine under its name.

    Raises:
        CheckpointError: ``RUN@STEP`` or a folder is not found.
        AdapterError: an adapter is damaged, or does not fit the model.
        ArenaError: the arena has no tasks, or its seats are not valid.
    """
    for arena in arenas:
        if type(arena).seats is Arena.seats and type(arena.matchmaker) is ArenaSeats:
            continue  # the policy sits everywhere
        live: dict[str, str] = {}  # as seats name an adapter -> as the engine does
        for task, seed in plays_from(arena, arena.seed, PLAYS, held_out=False):
            for seat in arena.seated(task, seed).values():
                known = (BASE, *arena.policies, *live)
                if seat.trainable or seat.client is not arena.client or seat.adapter in known:
                    continue
                if (adapter := _found(seat.adapter)) is not None:
                    load(adapter)
                    live[seat.adapter] = adapter.name
        if live:
            arena.matchmaker = SeatOverride(partial(_renamed, live), arena.matchmaker)


def _found(text: str) -> Adapter | None:
    try:
        adapter = named_adapter(text)
    except CheckpointError:
        if "@" in text or "/" in text:
            raise
        return None
    return replace(adapter, name=f"seat-{adapter.digest[:12]}")  # equal weights, equal name


def _renamed(live: Mapping[str, str], seat: Seat, _: int) -> Seat:
    """A seat that names its adapter as the engine does."""
    return replace(seat, adapter=live.get(seat.adapter, seat.adapter))
