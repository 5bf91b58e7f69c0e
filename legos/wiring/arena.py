"""Make an arena with its client, credit rule and options from the configuration."""

from collections.abc import Iterable
from typing import Any

from legos.arena.arena import Arena, GameArena
from legos.arena.checks import check_attributes
from legos.arena.curriculum import CURRICULA
from legos.arena.game import Game
from legos.arena.registry import find_arena, load_module
from legos.config.schema import GenerationConfig, PlayConfig, RunConfig
from legos.credit import make_credit
from legos.errors import ArenaError, ConfigError, LegosError
from legos.loop.mix import Mix
from legos.protocols import Client, CreditAssigner
from legos.wiring.options import OF_EVERY_ARENA, checked_options

__all__ = ["DEFAULT_CREDIT", "make_arena", "make_mix", "policies_of"]

DEFAULT_CREDIT = "dr_grpo"
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
    seed: int = 0,
) -> Arena:
    """Make an arena by name, with the settings of the configuration.

    Args:
        name: name of the arena, as ``find_arena`` takes it.
        client: answers for every seat.
        play: settings of play; None: the arena's own.
        generation: settings of sampling.
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
            arena: Arena = GameArena(kind(**options), client, **common)
        else:
            arena = kind(client, **common, **options)
    except LegosError:
        raise
    except Exception as error:  # the arena's own code may raise anything
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        hint = PASS_ON if any(f"argument {key!r}" in str(error) for key in OF_EVERY_ARENA) else ""
        raise ArenaError(
            f"arena {name!r} cannot be made with {given}: {type(error).__name__}: {error}{hint}"
        ) from error
    check_attributes(arena)
    if play.credit is not None and arena.credit_assigner is not common["credit_assigner"]:
        raise ConfigError(
            f"play.credit is {play.credit!r} but arena {name!r} brings the rule "
            f"{type(arena.credit_assigner).__name__} and did not take the one it was given; leave "
            "play.credit out, or pass credit_assigner on in the arena's constructor"
        )
    if generation is not None and generation.max_tokens is not None:
        arena.max_tokens = generation.max_tokens
    for field in ("tasks_per_step", "group_size", "illegal", "restrict_choices"):
        value = getattr(play, field)
        if value is not None:
            setattr(arena, field, value)
    if play.rules:
        if not isinstance(arena, GameArena):
            raise ConfigError(
                f"play.rules is true but arena {name!r} is no game, and writes its own prompts; "
                "leave play.rules out"
            )
        arena.state_rules()
    if play.curriculum is not None:
        if not arena.levels:
            raise ConfigError(
                f"play.curriculum is {play.curriculum!r} but arena {name!r} has no levels; leave "
                "play.curriculum out, or list them in the arena: levels = ('easy', 'hard')"
            )
        arena.curriculum = CURRICULA[play.curriculum]()
    return arena


def _credit(name: str) -> CreditAssigner:
    """The credit rule of a name, or of ``FILE.py:Rule``.

    Raises:
        ArenaError: the file cannot be imported.
        ConfigError: there is no such rule, or it cannot be made without arguments.
    """
    place, colon, rule = name.rpartition(":")
    if not colon:
        return make_credit(name)
    kind = getattr(load_module(place), rule, None)
    if kind is None:
        raise ConfigError(f"play.credit is {name!r}, but {place} has no {rule!r}")
    try:
        return kind()
    except Exception as error:  # the rule's own code may raise anything
        raise ConfigError(f"credit rule {name!r} cannot be made: {error!r}") from error


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
            name, client, play=one.play, generation=one.generation, seed=config.seed
        ): one.share
        for name, one in config.arenas.items()
    }
    training = config.training
    return Mix(shares, tokens_per_step=training.tokens_per_step, spill=training.spill)


def policies_of(names: Iterable[str]) -> tuple[str, ...]:
    """Names of the adapters that some arenas train.

    Raises:
        ArenaError: the arena is not found.
    """
    kinds = map(find_arena, names)
    found = (kind.policies if issubclass(kind, Arena) else Arena.policies for kind in kinds)
    return tuple(dict.fromkeys(policy for policies in found for policy in policies))
