"""``legos arenas``: the arenas that are known by name, their reference numbers, and checks."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from legos.arena.arena import Arena
from legos.arena.game import Game
from legos.arena.registry import known_arenas
from legos.checks import Finding, check_arena
from legos.config.schema import PlayConfig
from legos.fakes import ScriptedClient
from legos.wiring.arena import make_arena


def list_arenas() -> Mapping[str, Mapping[str, Any]]:
    """Name -> ``about`` (first line of the docstring) and ``reference`` (name -> number)."""
    return {
        name: {
            "about": (kind.__doc__ or "").strip().partition("\n")[0],
            "reference": _reference(kind),
        }
        for name, kind in known_arenas().items()
    }


def described(arenas: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
    """One line for each arena of ``list_arenas``."""
    lines: dict[str, str] = {}
    for name, arena in arenas.items():
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in arena["reference"].items())
        lines[name] = f"{arena['about']} ({numbers})" if numbers else arena["about"]
    return lines


def check_by_name(name: str, *, settings: PlayConfig, plays: int, seed: int) -> list[Finding]:
    """Check an arena by playing it with scripted players, without a model.

    Args:
        name: name of the arena, as ``--arena`` takes it.
        settings: settings of the arena.
        plays: number of plays of each player.
        seed: seed of tasks and plays.

    Raises:
        ArenaError: the arena is not found or cannot be played; the message says what to write.
    """
    arena = make_arena(name, ScriptedClient([]), play=settings)
    return check_arena(arena, plays=plays, seed=seed)


def checked(findings: Sequence[Finding], *, plain: bool) -> Mapping[str, Any]:
    """Name of each check -> its result, as one line for people or as JSON values."""
    marks = {True: "ok", False: "FAILED", None: "-"}
    if plain:
        return {each.name: f"{marks[each.passed]:<7}{each.text}" for each in findings}
    return {each.name: {"passed": each.passed, "text": each.text} for each in findings}


def _reference(kind: type[Arena | Game]) -> Mapping[str, float]:
    """The reference numbers of a game or an arena; {} if they depend on options that it needs."""
    if kind.reference in (Arena.reference, Game.reference):
        return kind.references
    parameters = inspect.signature(kind).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in optional]
    return {} if required else kind().reference()
