"""A mix: the arenas of a run and their shares of the tokens of an optimiser step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from legos.arena.arena import Arena
from legos.errors import ConfigError
from legos.loop.deficits import check_shares


class Mix:
    """One or several arenas that are trained together.

    Attributes:
        arenas: name -> arena.
        shares: name -> its share of the trained tokens.
    """

    def __init__(self, shares: Mapping[Arena, float]) -> None:
        """Mix arenas.

        Args:
            shares: arena -> its share of the trained tokens; ``TrainingConfig`` says how many a
                step has.

        Raises:
            ConfigError: there is no arena, two have the same name, or the shares do not add up.
        """
        names = _names_of(shares)
        if not names:
            raise ConfigError("the mix has no arena; name at least one, such as --mix nim=1")
        self.arenas = dict(zip(names, shares, strict=True))
        self.shares = dict(zip(names, shares.values(), strict=True))
        check_shares(self.shares, "in the mix")

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the adapters that the arenas train."""
        return tuple(dict.fromkeys(n for arena in self.arenas.values() for n in arena.policies))

    @property
    def title(self) -> str:
        """The names of the arenas, for people."""
        return "+".join(self.arenas)

    def state(self) -> dict[str, Any]:
        """Name of each arena -> its state, as JSON values."""
        return {name: arena.state() for name, arena in self.arenas.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        for name, arena in self.arenas.items():
            arena.restore(state[name])


def mix_of(arena: "Arena | Mix | Sequence[Arena]") -> Mix:
    """A mix of one arena, of several with equal shares, or the mix itself.

    Raises:
        ConfigError: there is no arena, two have the same name, or it is a name.
    """
    if isinstance(arena, Mix):
        return arena
    if isinstance(arena, str):
        raise ConfigError(f"arena is {arena!r}, a name; expected make_arena({arena!r}, client)")
    arenas = [arena] if isinstance(arena, Arena) else list(arena)
    _names_of(arenas)  # a mapping would have an arena that is listed twice once
    return Mix(dict.fromkeys(arenas, 1.0 / max(len(arenas), 1)))


def _names_of(arenas: Iterable[Arena]) -> list[str]:
    """The names of arenas.

    Raises:
        ConfigError: two have the same.
    """
    names = [arena.name for arena in arenas]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(
            f"arena {twice[0]!r} is in the mix {names.count(twice[0])} times; name each arena "
            "once, and give it the sum of its shares"
        )
    return names
