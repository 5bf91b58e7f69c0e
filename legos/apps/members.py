"""Members by the names that users give them, in the seats of an arena and live in one engine."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from legos.apps.adapters import loaded
from legos.apps.seated import load_seated
from legos.arena.arena import Arena
from legos.arena.checks import checked_seats
from legos.arena.cursor import plays_from
from legos.errors import CheckpointError, user_code
from legos.league.cast import BOTS, Cast, is_adapter
from legos.protocols import Seat
from legos.records.limits import EngineLimits
from legos.records.names import BASE, POLICY
from legos.run.people import lasting_base
from legos.weights.adapter import Adapter
from legos.wiring.named import frozen_adapters
from legos.wiring.serving import base_of, put_on


def adapters_of(
    members: Sequence[str], policies: Sequence[str] = (POLICY,)
) -> Mapping[tuple[str, str], Adapter]:
    """Member and policy -> its adapter, for members that have one; equal weights have equal names.

    Args:
        members: who is named.
        policies: the policies of the arena.

    Raises:
        CheckpointError: a member is neither a bot, base or a server, nor a run or an adapter.
        AdapterError: an adapter is damaged, or a run keeps none of a policy.
    """
    try:
        return {
            (who, policy): adapter
            for who in members
            if is_adapter(who)
            for policy, adapter in frozen_adapters(who, policies).items()
        }
    except CheckpointError as error:
        others = ", ".join((*BOTS, BASE))
        raise CheckpointError(
            f"{error}; other players are {others}, FILE.py:Class and http://..."
        ) from error


def model_of(model: str | None, adapters: Mapping[tuple[str, str], Adapter]) -> str:
    """The base model of members' adapters; as ``base_of``, whose errors name the member here."""
    return base_of(model, [replace(adapter, name=who) for (who, _), adapter in adapters.items()])


def lasting_names(
    members: Sequence[str], adapters: Mapping[tuple[str, str], Adapter], model: str
) -> Mapping[str, str]:
    """Member -> a name that it keeps while its run goes on: that of adapters is by their weights.

    Args:
        members: who is named.
        adapters: ``adapters_of`` the members.
        model: the base model.
    """
    names = {who: lasting_base(model) if who == BASE else who for who in members}
    for who in dict.fromkeys(who for who, _ in adapters):
        names[who] = "+".join(one.name for (each, _), one in adapters.items() if each == who)
    return names


def free_seats(arena: Arena) -> Mapping[str, Seat]:
    """The seats of the first task for which the arena does not bring a player of its own.

    Raises:
        ArenaError: ``seats`` of the arena failed, or returned no seats.
    """
    [(task, _)] = plays_from(arena, arena.seed, 1, held_out=False)
    source = f"seats() of arena {arena.name!r}"
    with user_code(source):
        seats = checked_seats(arena.seats(task), arena.roles, arena.policies, source)
    return {role: seat for role, seat in seats.items() if seat.policy is not None}


@contextmanager
def cast_of(
    arena: Arena,
    members: Sequence[str],
    adapters: Mapping[tuple[str, str], Adapter],
    *,
    model: str | None,
    limits: EngineLimits,
    api_key: str | None = None,
) -> Generator[Cast]:
    """Within the block, members can be seated in an arena; no model is loaded for bots alone.

    Args:
        arena: the arena, whose client is replaced where a model answers, also in arenas it keeps.
        members: who may be seated.
        adapters: ``adapters_of`` the members.
        model: the base model; None: that of the adapters.
        limits: limits of the engine.
        api_key: key of the servers.

    Raises:
        AdapterError: an adapter was trained on another model.
        ArenaError: an optimal player cannot be computed.
        LegosError: the model cannot be loaded.
    """
    live = {each: adapter.name for each, adapter in adapters.items()}
    cast = Cast(arena, live=live, api_key=api_key)
    seats = free_seats(arena)
    for who in members:
        for seat in seats.values():
            cast.seat(who, seat)  # raises where it cannot be
    if not adapters and BASE not in members and len(seats) == len(arena.roles):
        yield cast
        return
    different = {adapter.name: adapter for adapter in adapters.values()}
    with loaded(model_of(model, adapters), [*different.values()], limits) as engine:
        before, client = arena.client, engine.client()
        for each in (arena, *arena.kept.values()):
            each.client = client if each.client is before else each.client
        load_seated([arena], partial(put_on, engine.engine, model=engine.name))
        yield cast
