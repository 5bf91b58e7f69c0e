"""Make an arena with its client, credit rule and options from the configuration."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from legos.arena.arena import Arena, GameArena
from legos.arena.checks import check_attributes
from legos.arena.curriculum import CURRICULA
from legos.arena.game import Game
from legos.arena.matchmaker import ArenaSeats
from legos.arena.registry import find_arena, made_of
from legos.config.league import LeagueConfig
from legos.config.schema import GenerationConfig, PlayConfig, PlayedArena, RunConfig
from legos.credit import make_credit
from legos.credit.group import GroupCredit
from legos.errors import ArenaError, ConfigError, LegosError, with_story
from legos.league.cast import OPTIMAL, Cast, is_own_bot
from legos.league.matchmaker import EXPLOITER, EXPLOITERS, LeagueSeats
from legos.loop.mix import Mix
from legos.protocols import Client, CreditAssigner
from legos.wiring.options import OF_EVERY_ARENA, checked_options

logger = logging.getLogger(__name__)

DEFAULT_CREDIT = "dr_grpo"
MOST_ALONE = 0.2  # share of plays of a step with a start that no other play of it has
OF_ARENAS = (
    *("tasks_per_step", "group_size", "illegal", "retries", "restrict_choices", "max_tokens"),
    *("system", "play_timeout_s", "report_after_s", "policies"),
)
"""Attributes of arenas that somebody may write in a game."""
MATCHMAKER = ("seats", "record", "state", "restore", "seating", "evaluation")  # methods
PASS_ON = (
    "; an arena's __init__ takes (self, client=None, *, ..., **kwargs) and passes them on: "
    "super().__init__(client, **kwargs)"
)


def make_arena(
    name: str,
    client: Client | None,
    *,
    play: PlayConfig | None = None,
    generation: GenerationConfig | None = None,
    league: LeagueConfig | None = None,
    seed: int = 0,
) -> Arena:
    """Make an arena by name, with the settings of the configuration.

    Args:
        name: name of the arena, as ``find_arena`` takes it.
        client: answers for every seat.
        play: settings of play; None: the arena's own.
        generation: settings of sampling.
        league: settings of the snapshots that play.opponents draws from; None: the defaults.
        seed: seed of tasks and plays.

    Raises:
        ArenaError: the arena is not found, its constructor does not take an option, or an
            attribute is invalid.
        ConfigError: the arena does not use the requested credit rule, has no levels for the
            requested curriculum, or no rules to state.
    """
    play = play or PlayConfig()
    kind = find_arena(name)
    options = checked_options(name, play.options)
    common: dict[str, Any] = {
        "credit_assigner": _credit(play.credit or DEFAULT_CREDIT),
        "temperature": generation.temperature if generation else 1.0,
        "seed": seed,
    }
    try:
        if issubclass(kind, Game):
            _warn_of_unread(kind)
            arena: Arena = GameArena(kind(**options), client, **common)
        else:
            arena = kind(client, **common, **options)
    except LegosError:
        raise
    except Exception as error:  # the arena's own code may raise anything
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        hint = PASS_ON if any(f"argument {key!r}" in str(error) for key in OF_EVERY_ARENA) else ""
        refusal = ArenaError(
            f"arena {name!r} cannot be made with {given}: {type(error).__name__}: {error}{hint}"
        )
        raise with_story(refusal, error) from error
    check_attributes(arena)
    if play.credit is not None and arena.credit_assigner is not common["credit_assigner"]:
        raise ConfigError(
            f"play.credit is {play.credit!r} but arena {name!r} brings the rule "
            f"{type(arena.credit_assigner).__name__} and did not take the one it was given; leave "
            "play.credit out, or pass credit_assigner on in the arena's constructor"
        )
    fields = ("tasks_per_step", "group_size", "illegal", "restrict_choices")
    chosen = {field: getattr(play, field) for field in fields}
    chosen["max_tokens"] = generation.max_tokens if generation else None
    for field, value in chosen.items():
        if value is not None:
            setattr(arena, field, value)
            arena.configured[field] = value
    _state_rules(arena, play)
    _set_curriculum(arena, play)
    _seat_opponents(arena, play, league or LeagueConfig())
    return arena


def _warn_of_unread(kind: type[Game]) -> None:
    """Name the attributes of a game that only an arena would read."""
    if unread := [name for name in OF_ARENAS if not callable(getattr(kind, name, len))]:
        logger.warning(
            "game %r sets %s without effect: these are attributes of arenas; set them on "
            "GameArena(%s, client) or on the command line, or recommend them in the game, such as "
            "recommended = {'play.tasks_per_step': 64}",
            kind.name,
            " and ".join(unread),
            kind.__name__,
        )


def warn_of_few_plays(arena: Arena) -> None:
    """Say that plays of a step of a game begin apart, where credit compares those of one start."""
    compares = isinstance(arena.credit_assigner, GroupCredit)
    if not isinstance(arena, GameArena) or arena.group_size > 1 or not compares:
        return
    plays = arena.tasks_per_step
    alone = sum(share * (1 - share) ** (plays - 1) for _, share in arena.game.starts() or ())
    if alone > MOST_ALONE:
        logger.warning(
            "%.0f %% of the %d plays of a step of arena %r begin as no other one does: nothing is "
            "learned from them; give --play.group-size 8 --play.tasks-per-step %d",
            *(100 * alone, plays, arena.name, max(1, plays // 8)),
        )


def _state_rules(arena: Arena, play: PlayConfig) -> None:
    """State the rules of a game, if the settings say so.

    Raises:
        ConfigError: the arena is no game.
    """
    if not play.rules:
        return
    if not isinstance(arena, GameArena):
        raise ConfigError(
            f"play.rules is true but arena {arena.name!r} is no game, and writes its own prompts; "
            "leave play.rules out"
        )
    arena.state_rules()


def _set_curriculum(arena: Arena, play: PlayConfig) -> None:
    """Give an arena the curriculum of its settings.

    Raises:
        ConfigError: it has no levels.
    """
    if play.curriculum is None:
        return
    if not arena.levels:
        raise ConfigError(
            f"play.curriculum is {play.curriculum!r} but arena {arena.name!r} has no levels; leave "
            "play.curriculum out, or list them in the arena: levels = ('easy', 'hard')"
        )
    arena.curriculum = CURRICULA[play.curriculum]()


def _seat_opponents(arena: Arena, play: PlayConfig, settings: LeagueConfig) -> None:
    """Give an arena the matchmaker of its settings; an exploiter becomes one of its policies.

    Raises:
        ArenaError: an optimal opponent cannot be computed.
        ConfigError: the arena has one seat, chooses its players itself, or has several policies; or
            a matchmaker or a bot is none.
    """
    if play.matchmaker is not None:
        arena.matchmaker = made = made_of(play.matchmaker, "play.matchmaker")
        if lacking := [name for name in MATCHMAKER if not hasattr(made, name)]:
            raise ConfigError(
                f"play.matchmaker is {play.matchmaker!r}, whose class has no {lacking[0]!r}; make "
                "it a subclass of legos.Matchmaker"
            )
    if not play.opponents:
        return
    named = f"play.opponents names {', '.join(play.opponents)} but arena {arena.name!r}"
    if len(arena.roles) < 2:
        raise ConfigError(f"{named} has one role; leave play.opponents out")
    if type(arena.matchmaker) is not ArenaSeats:
        raise ConfigError(
            f"{named} brings a matchmaker, {type(arena.matchmaker).__name__}; leave one of them out"
        )
    shares = {**play.opponents, **play.opponents_end}
    if EXPLOITERS in shares and EXPLOITER not in shares:
        raise ConfigError(
            f"play.opponents names {EXPLOITERS}, earlier versions of the exploiter, but not "
            f"{EXPLOITER}; give it a share too, such as {EXPLOITER}=0.2"
        )
    if EXPLOITER in shares:
        if len(arena.policies) > 1:
            raise ConfigError(
                f"{named} trains {', '.join(arena.policies)}, and an exploiter of several policies "
                "is not defined; leave exploiter out"
            )
        arena.policies = (*arena.policies, EXPLOITER)
    cast = Cast(arena, api_key=os.environ.get("LEGOS_API_KEY"))
    if OPTIMAL in shares:
        _ = cast.best  # refused here, and not in the first play
    for bot in filter(is_own_bot, shares):
        cast.bot(bot)  # the same
    arena.matchmaker = LeagueSeats(
        play.opponents,
        cast,
        ends=play.opponents_end or None,
        seed=arena.seed,
        snapshots=settings.snapshots,
        recent=settings.recent,
        every=settings.snapshot_every,
    )


def _credit(name: str) -> CreditAssigner:
    """The credit rule of a name, or of ``FILE.py:Rule``.

    Raises:
        ArenaError: the file cannot be imported.
        ConfigError: there is no such rule, or it cannot be made without arguments.
    """
    if ":" not in name:
        return make_credit(name)
    made = made_of(name, "play.credit")
    if not isinstance(made, CreditAssigner):
        raise ConfigError(
            f"play.credit is {name!r}, which is no credit rule; make it a subclass of "
            "legos.CreditAssigner with a method assign(self, episodes)"
        )
    return made


def make_mix(config: RunConfig, client: Client | None) -> Mix:
    """Make the arenas of a run.

    Args:
        config: settings of the run.
        client: answers for every seat.

    Raises:
        ArenaError: as for ``make_arena``.
        ConfigError: as for ``make_arena``; or two arenas have the same name.
    """
    shares = {
        make_arena(
            name,
            client,
            play=one.play,
            generation=one.generation,
            league=config.league,
            seed=config.seed,
        ): one.share
        for name, one in config.arenas.items()
    }
    return Mix(shares)


def policies_of(arenas: Mapping[str, PlayedArena]) -> tuple[str, ...]:
    """Names of the adapters that some arenas train, an exploiter included.

    Raises:
        ArenaError: the arena is not found.
    """
    found: list[str] = []
    for name, one in arenas.items():
        kind = find_arena(name)
        found += kind.policies if issubclass(kind, Arena) else Arena.policies
        if EXPLOITER in {**one.play.opponents, **one.play.opponents_end}:
            found.append(EXPLOITER)
    return tuple(dict.fromkeys(found))
