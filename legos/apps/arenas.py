"""``legos arenas``: the arenas that are known by name, and their reference numbers."""

import inspect
from collections.abc import Mapping
from typing import Any

from legos.arena.game import Game
from legos.arena.registry import known_arenas

__all__ = ["described", "list_arenas"]


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


def _reference(kind: type) -> Mapping[str, float]:
    """The reference numbers of a game that can be made without options."""
    parameters = inspect.signature(kind).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in optional]
    return kind().reference() if issubclass(kind, Game) and not required else {}
