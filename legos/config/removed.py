"""Names of settings and options that were removed, and what replaces each."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

__all__ = ["removed", "why_removed"]

_LISTED = resources.files("legos.config") / "removed.toml"


@cache
def removed() -> Mapping[str, str]:
    """Last part of the name of a removed setting or option -> what replaces it."""
    listed: dict[str, list[str]] = tomllib.loads(_LISTED.read_text(encoding="utf-8"))
    return {name: instead for instead, names in listed.items() for name in names}


def why_removed(name: str) -> str | None:
    """What replaces a removed setting, for messages; None: no setting was removed with this name.

    Args:
        name: dotted name, or the part after the last dot.
    """
    instead = removed().get(name.rpartition(".")[2])
    return instead and f"was removed: {instead}"
