"""``legos arenas``: what can be played by name."""

from collections.abc import Mapping

from legos.arena.registry import known_arenas

__all__ = ["list_arenas"]


def list_arenas() -> Mapping[str, str]:
    """Arena name -> first line of its description."""
    return {
        name: (kind.__doc__ or "").strip().partition("\n")[0]
        for name, kind in known_arenas().items()
    }
