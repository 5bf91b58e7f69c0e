"""Adapters of other runs that the seats of an arena name, such as ``duel-1@10``."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from legos.arena.arena import Arena
from legos.arena.cursor import plays_from
from legos.arena.matchmaker import ArenaSeats, SeatOverride, renamed
from legos.config.resolve import read_config
from legos.config.schema import RunConfig
from legos.errors import CheckpointError, ConfigError, did_you_mean, user_code
from legos.league.cast import BOTS, PERSON, is_adapter
from legos.league.matchmaker import DRAWS, EXPLOITER, LeagueSeats, with_adapters
from legos.records.names import BASE, POLICY
from legos.run.find import find_run, split_place
from legos.run.folder import CONFIG, RUNS, RunFolder
from legos.weights.adapter import Adapter
from legos.wiring.named import frozen_adapters, named_adapter

logger = logging.getLogger(__name__)
PLAYS = 16  # plays of an arena whose seats are looked at


def check_opponents_exist(config: RunConfig) -> None:
    """Check that every opponent of a run is found, before anything is loaded.

    A warning names one that was trained on other arenas.

    Raises:
        ConfigError: one is a person, or no draw of the league, no bot, no run and no adapter.
        AdapterError: one is damaged, or was trained on another model.
    """
    for arena, one in config.arenas.items():
        named = {**one.play.opponents, **one.play.opponents_end}
        for person in (name for name in named if name.startswith(PERSON)):
            raise ConfigError(
                f"play.opponents names {person!r}, but nobody answers for a person while a run "
                f"trains; their plays are rated beside its opponents: legos play {arena} --against "
                f"RUN --name {person.removeprefix(PERSON)}"
            )
        for name in with_adapters(named):
            try:
                adapter = named_adapter(name, name=name)
            except CheckpointError as error:
                runs = [path.parent.name for path in RUNS.glob(f"*/{CONFIG}")]
                hint = did_you_mean(split_place(name)[0], (*DRAWS, *BOTS, BASE, *runs))
                raise ConfigError(
                    f"play.opponents names {name!r}, which is no opponent: {error}{hint}"
                ) from error
            adapter.check_base(config.model)
            if (run := run_of(name)) is not None:
                warn_of_other_arena(run, f"opponent {name}", arena)


def run_of(who: str) -> RunFolder | None:
    """The run of a member; None: it is none, but an adapter folder, a bot or a server."""
    with suppress(CheckpointError):
        if is_adapter(who):
            return find_run(split_place(who)[0])
    return None


def warn_of_other_arena(run: RunFolder, who: object, arena: str) -> None:
    """Warn where a run whose adapter plays in an arena was trained on others."""
    own = read_config(run.settings).arenas
    if arena not in own:
        logger.warning("%s was trained on %s, and plays %s here", who, "+".join(own), arena)


def load_seated(
    arenas: Iterable[Arena], load: Callable[[Adapter], object]
) -> tuple[Mapping[str, str], Mapping[tuple[str, str], str]]:
    """Make the adapters live that the untrained seats of the first plays name by their run.

    A name that is neither a run nor an adapter folder is left to the engine, in which an adapter of
    that name may be live.

    Args:
        arenas: arenas that ask the engine.
        load: makes an adapter live in the engine under its name.

    Returns:
        Name of each as seats have it -> its name in the engine; and the same for opponents of
        leagues, by opponent and policy.

    Raises:
        CheckpointError: ``RUN@STEP`` or a folder is not found.
        AdapterError: an adapter is damaged, or does not fit the model.
        ArenaError: the arena has no tasks, or its seats failed or are not valid.
    """
    loaded: dict[str, str] = {}
    opponents: dict[tuple[str, str], str] = {}
    for arena in arenas:
        if type(arena).seats is Arena.seats and type(arena.matchmaker) is ArenaSeats:
            continue  # the policy sits everywhere
        if isinstance(league := arena.matchmaker, LeagueSeats):
            policies = [name for name in arena.policies if name != EXPLOITER]
            for name in league.named:
                found = frozen_adapters(name, policies)
                arena.named_adapters[name] = [adapter.digest for adapter in found.values()]
                for policy, adapter in found.items():
                    load(adapter)
                    opponents[name, policy] = league.cast.live[name, policy] = adapter.name
            continue
        live: dict[str, str] = {}  # as seats name an adapter -> as the engine does
        for task, seed in plays_from(arena, arena.seed, PLAYS, held_out=False):
            with user_code(f"seats() of arena {arena.name!r}"):
                seats = arena.seated(task, seed)
            for seat in seats.values():
                known = (BASE, *arena.policies, *live)
                if seat.trainable or seat.client is not arena.client or seat.adapter in known:
                    continue
                if (adapter := _found(seat.adapter)) is not None:
                    load(adapter)
                    live[seat.adapter] = adapter.name
                    arena.named_adapters[seat.adapter] = [adapter.digest]
        if live:
            arena.matchmaker = SeatOverride(partial(renamed, live), arena.matchmaker)
            loaded |= live
    return loaded, opponents


def _found(text: str) -> Adapter | None:
    try:
        return frozen_adapters(text, (POLICY,))[POLICY]
    except CheckpointError:
        if "@" in text or "/" in text:
            raise
        return None
