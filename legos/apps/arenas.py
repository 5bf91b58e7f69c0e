"""``legos arenas``: the arenas that are known by name."""

from collections.abc import Mapping

from legos.arena.registry import known_arenas

__all__ = ["list_arenas"]


def list_arenas() -> Mapping[str, str]:
    """Name -> first line of the docstring, for every known arena."""
    return {
        name: (kind.__doc__ or "").strip().partition("\n")[0]
        for name, kind in known_arenas().items()
    }
