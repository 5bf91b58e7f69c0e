"""``legos tournament`` and ``legos eval --against``: who is stronger, and how sure that is."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from legos.apps.evaluate import OF_PLAYS, PLAYS, reported
from legos.apps.members import adapters_of, cast_of, free_seats, lasting_names, model_of
from legos.apps.seated import run_of, warn_of_other_arena
from legos.arena.arena import Arena
from legos.arena.registry import advice
from legos.config.resolve import read_config, resolve
from legos.config.schema import PlayConfig, RunConfig
from legos.errors import ArenaError, ConfigError
from legos.fakes import ScriptedClient
from legos.league.cast import PERSON, RANDOM, Cast, only_plays
from legos.league.ratings import cyclic_share, nash_mixture, ratings, strongest_cycle
from legos.league.tournament import (
    Meeting,
    Results,
    all_pairs,
    exact_results,
    mean_interval,
    played_results,
)
from legos.records.count import Count
from legos.run.find import adapter_of, find_run, split_place
from legos.run.people import personal_plays
from legos.wiring.arena import make_arena

logger = logging.getLogger(__name__)
ALL = "all"
NUM_PLAYS = 100


def tournament(
    members: Sequence[str],
    *,
    arena: str | None = None,
    seed: int = 0,
    model: str | None = None,
    snapshots: int = 8,
    api_key: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Mapping[str, Any]:
    """Let every member meet every other one, and rate them.

    Args:
        members: random, optimal, base, RUN, RUN@STEP, RUN@best, RUN@vN, adapter folders, bots as
            ``FILE.py:Class``, addresses of servers, ``person:NAME`` with the plays that were kept;
            ``RUN@all`` stands for several adapters of a run.
        arena: the arena; None: that of the first run, with its settings.
        seed: seed of the tasks and the plays.
        model: the base model; None: that of the run, or of the adapters.
        snapshots: number of adapters of ``RUN@all``, spread over its steps.
        api_key: key of the servers.
        overrides: dotted settings that replace those of the run.

    Returns:
        ``arena``, ``exact`` (computed without a play), ``plays``, ``failed``, ``void``; ``unit``,
        the gain that counts as a whole win where wins differ in size; ``ratings``: member ->
        ``rating`` (Elo), ``low`` and ``high`` (its interval of 95 %), ``plays`` and ``forfeits``,
        the strongest first; ``matrix``: member -> member -> figures of the first against the
        second, in all roles and in each of ``roles``, if they met; ``nash``: member -> its share,
        empty unless all met; ``cyclic_share``; ``cycle``: the members of the strongest cycle, each
        of whom beats the next, if there is one.

    Raises:
        LegosError: a member, the arena or a setting is not valid, or members never met.
    """
    names = list(dict.fromkeys(each for who in members for each in _expanded(who, snapshots)))
    pairs = all_pairs(names)
    given = overrides or {}
    name, config = _settings(names, arena, {PLAYS: NUM_PLAYS, **given}, model)
    exact = given.keys().isdisjoint(OF_PLAYS)  # otherwise members play
    results = meet(name, config, pairs, exact=exact, model=model, seed=seed, api_key=api_key)
    table = results.table
    rated = ratings(table, names, unit=results.unit)
    order = [rating.member for rating in rated]
    rewards = table.rewards(order)
    unmet = np.isnan(rewards) & ~np.eye(len(order), dtype=bool)
    shares = () if unmet.any() else nash_mixture(rewards)
    return {
        **_counts(name, results),
        "unit": results.unit,
        "ratings": {
            each.member: {
                "rating": each.elo,
                "low": each.low,
                "high": each.high,
                "plays": 0 if table.exact else each.plays,
                "forfeits": table.forfeits(each.member, order),
            }
            for each in rated
        },
        "matrix": {
            mine: {
                theirs: _by_role(results, mine, theirs)
                for theirs in order
                if theirs != mine and table.tally(mine, theirs).plays
            }
            for mine in order
        },
        "nash": dict(zip(order, map(float, shares), strict=False)),
        "cyclic_share": float(cyclic_share(table.scores(order, results.unit))),
        "cycle": strongest_cycle(table, order, unit=results.unit),
    }


def evaluate_against(
    run: str,
    members: Sequence[str],
    *,
    adapter: str | None = None,
    overrides: Mapping[str, object] | None = None,
    api_key: str | None = None,
) -> Mapping[str, Any]:
    """Evaluate an adapter against members in the other seats, with the settings of its run.

    Args:
        run: the run, as for ``evaluate_run``.
        members: whom it meets, as for ``tournament``.
        adapter: what ``named_adapter`` reads, evaluated in place of the run's.
        overrides: dotted settings that replace those of the run.
        api_key: key of the servers.

    Returns:
        ``arena``, ``exact``, ``plays``, ``failed``, ``void`` and ``against``: member -> figures of
        the adapter against it, in all roles and in each of ``roles``.

    Raises:
        LegosError: the run, a member or a setting is not valid, or a pair never met.
    """
    mine, given = adapter or run, overrides or {}
    name, config = _settings([run], None, given, None)
    pairs = [(mine, theirs) for theirs in dict.fromkeys(members)]
    exact = given.keys().isdisjoint(OF_PLAYS)
    results = meet(name, config, pairs, exact=exact, seed=config.seed, api_key=api_key)
    against = {theirs: _by_role(results, mine, theirs) for _, theirs in pairs}
    return {**_counts(name, results), "against": against}


def _by_role(results: Results, mine: str, theirs: str) -> dict[str, Any]:
    """Figures of a member against another, in all roles and in each of ``roles``."""
    table = results.table
    met = [role for role in results.roles if table.tally(mine, theirs, role).plays]
    roles = {role: figures(results, mine, theirs, role) for role in met}
    return {**figures(results, mine, theirs), "roles": roles}


def meet(
    name: str,
    config: RunConfig,
    meetings: Sequence[Meeting],
    *,
    exact: bool,
    model: str | None = None,
    seed: int = 0,
    api_key: str | None = None,
) -> Results:
    """Let members meet in one of the arenas of a run: exactly, or by plays.

    Args:
        name: the arena, as the settings name it.
        config: the settings.
        meetings: who meets whom.
        exact: whether no play is needed where the game can be enumerated.
        model: the base model; None: that of the settings.
        seed: seed of the tasks and the plays.
        api_key: key of the servers.

    Raises:
        LegosError: a member, the arena or a setting is not valid, or a pair never met.
    """
    every = list(dict.fromkeys(who for pair in meetings for who in pair))
    people = [who for who in every if who.startswith(PERSON)]
    members = [who for who in every if who not in people]
    fresh = [pair for pair in meetings if not {*pair}.intersection(people)]
    arena, count = _arena(name, config), Count()

    async def met(cast: Cast) -> Results:
        unseen = any(map(only_plays, members))
        try:
            alone = len(arena.policies) == 1
            if exact and alone and not unseen and not people and cast.tree is not None:
                return await exact_results(cast, cast.tree, members)
            return await played_results(
                cast,
                fresh,
                [*free_seats(arena)],
                plays=config.loop.evaluation_plays,
                seed=seed,
                concurrency=config.play.concurrency,
                count=count,
            )
        finally:
            await cast.aclose()

    adapters, limits = adapters_of(members, arena.policies), config.generation.limits()
    base = model or config.model
    with cast_of(arena, members, adapters, model=base, limits=limits, api_key=api_key) as cast:
        results = asyncio.run(reported(met(cast), lambda: count))
    if people:
        names = lasting_names(every, adapters, model_of(base, adapters))
        results = _with_people(results, name, arena, config.arenas[name].play, names)
    for mine, theirs in fresh:
        figures(results, mine, theirs)  # raises where all their plays failed
    if results.failure:
        logger.warning(results.failure)
    return results


def _arena(name: str, config: RunConfig) -> Arena:
    """The arena, without what is of training alone."""
    one, loop = config.arenas[name], config.loop
    play = one.play.for_evaluation().replace(matchmaker=None)
    arena = make_arena(name, ScriptedClient([]), play=play, generation=one.generation)
    if loop.evaluation_temperature is not None:
        arena.temperature = loop.evaluation_temperature
    return arena


def _with_people(
    results: Results, name: str, arena: Arena, play: PlayConfig, names: Mapping[str, str]
) -> Results:
    """The results, and what people have earned in the plays that were kept.

    Args:
        results: results of the other members.
        name: the arena, as the settings name it.
        arena: the arena.
        play: its settings, with the options that those plays had too.
        names: member -> its lasting name.

    Raises:
        ArenaError: a person has played against none of the others.
    """
    table, unit, number = results.table, results.unit, 0
    for kept in personal_plays(arena.name, play.options):
        sides = kept.sides
        for mine, theirs in permutations(names, 2):
            one, two = names[mine], names[theirs]
            people = [who.startswith(PERSON) for who in (mine, theirs)]
            whole = len(sides) == 2 and {one, two} == {*sides}
            if whole and any(people) and (table.sides > 1 or len(sides[one]) == 1):
                returns = kept.result.mean_return(sides[one]), kept.result.mean_return(sides[two])
                account = table.account(mine, theirs, sides[one])
                gain = account.count(*returns, kept.result.gave_up)
                unit = unit and max(unit, abs(gain))
                number += people[0]
    for person in (who for who in names if who.startswith(PERSON)):
        if not any(table.tally(person, other).plays for other in names):
            others = [who for who in names if not who.startswith(PERSON)]
            raise ArenaError(
                f"{person} has played none of {', '.join(others) or 'the others'} in arena "
                f"{name!r} with these options; play: legos play {name} "
                f"--against {(*others, RANDOM)[0]} --name {person.removeprefix(PERSON)}"
            )
    return replace(results, plays=results.plays + number, unit=unit)


def figures(results: Results, mine: str, theirs: str, role: str | None = None) -> dict[str, Any]:
    """Shares of wins, draws and losses; the mean reward, and its interval (no width if exact).

    Raises:
        ArenaError: they never met.
    """
    tally, exact = results.table.tally(mine, theirs, role), results.table.exact
    if not tally.plays:
        raise ArenaError(
            f"{mine} and {theirs} never met, so they cannot be compared: no play of theirs ended\n"
            f"{results.failure or 'all were void'}"
        )
    low, high = (tally.mean, tally.mean) if exact else mean_interval(tally)
    return {
        "win": tally.wins / tally.plays,
        "draw": tally.draws / tally.plays,
        "loss": tally.losses / tally.plays,
        "reward": tally.mean,
        "low": low,
        "high": high,
        "plays": 0 if exact else int(tally.plays),
        "forfeits": int(tally.forfeits),
    }


def _counts(name: str, results: Results) -> dict[str, Any]:
    return {
        "arena": name,
        "exact": results.table.exact,
        "plays": results.plays,
        "failed": results.failed,
        "void": results.void,
    }


def _expanded(who: str, snapshots: int) -> Iterator[str]:
    """The members that a name stands for: several adapters of a run, or itself."""
    run, at = split_place(who)
    if at != ALL:
        yield who
        return
    folder = find_run(run)
    adapter_of(folder)  # raises where there is none
    newest_first = [*folder.adapter_versions.values()][::-1]
    number = min(snapshots, len(newest_first))
    spread: list[int] = np.linspace(0, len(newest_first) - 1, number).round().astype(int).tolist()
    for index in reversed(spread):
        yield f"{run}@{newest_first[index].name}"


def _settings(
    members: Sequence[str], arena: str | None, given: Mapping[str, object], model: str | None
) -> tuple[str, RunConfig]:
    """The arena and its settings: those of the first run, or of a named arena.

    Raises:
        ConfigError: there is neither, the run has several arenas, or a setting is not valid.
        ArenaError: the arena does not accept an option.
    """
    runs = {run.path: run for run in map(run_of, members) if run is not None}
    run = next(iter(runs.values()), None)
    arenas = [] if run is None else [*read_config(run.settings).arenas]
    if arena is None and not arenas:
        adapters_of(members)  # names who is neither a run nor an adapter
        raise ConfigError(
            f"no run is among {', '.join(members)}, whose arena could be played; give --arena NAME"
        )
    if arena is None and run is not None and len(arenas) > 1:
        raise ConfigError(
            f"the run in {run.path} has several arenas, {', '.join(arenas)}; name one: "
            f"legos tournament {' '.join(members)} ... --arena {arenas[0]}"
        )
    name = arena or arenas[0]
    if run is not None and name in arenas:
        config = resolve(run=run.settings, overrides=given).config
    else:
        base = model_of(model, adapters_of(members))
        given = {**given, "arena": name, "model": base}
        config = resolve(overrides=given, recommend=advice).config
    for path, each in runs.items():
        warn_of_other_arena(each, path, name)
    return name, config
