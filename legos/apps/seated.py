"""Adapters of other runs that the seats of an arena name, such as ``duel-1@10``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from legos.apps.adapters import named_adapter
from legos.arena.arena import Arena
from legos.arena.matchmaker import ArenaSeats
from legos.errors import CheckpointError
from legos.play.cursor import plays_from
from legos.protocols import Matchmaker, Seat, Seating
from legos.records.episode import Episode, Task
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
        live: dict[str, str] = {}
        for task, seed in plays_from(arena, arena.seed, PLAYS, held_out=False):
            for seat in arena.seated(task, seed).values():
                known = (BASE, *arena.policies, *live)
                if seat.trainable or seat.client is not arena.client or seat.adapter in known:
                    continue
                if (adapter := _found(seat.adapter)) is not None:
                    load(adapter)
                    live[seat.adapter] = adapter.name
        if live:
            arena.matchmaker = _LiveAdapters(arena.matchmaker, live)


def _found(text: str) -> Adapter | None:
    try:
        adapter = named_adapter(text)
    except CheckpointError:
        if "@" in text or "/" in text:
            raise
        return None
    return replace(adapter, name=f"seat-{adapter.digest[:12]}")  # equal weights, equal name


class _LiveAdapters:
    """A matchmaker whose seats name adapters as the engine does."""

    def __init__(self, matchmaker: Matchmaker, live: Mapping[str, str]) -> None:
        self._matchmaker = matchmaker
        self._live = live  # as seats name it -> as the engine does

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        seats = self._matchmaker.seats(arena, task, seed)
        return {
            role: replace(seat, adapter=self._live.get(seat.adapter, seat.adapter))
            for role, seat in seats.items()
        }

    def record(self, episode: Episode) -> None:
        self._matchmaker.record(episode)

    def state(self) -> dict[str, Any]:
        return self._matchmaker.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._matchmaker.restore(state)
