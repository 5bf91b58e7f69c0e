"""The plays that a run has stored, without the times of their turns."""

import json
from pathlib import Path
from typing import Any

__all__ = ["timeless_plays"]


def timeless_plays(path: Path) -> list[dict[str, Any]]:
    """Each line of a file of episodes, without what differs between equal runs."""
    return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]


def _timeless(play: dict[str, Any]) -> dict[str, Any]:
    for seat in play["seats"]:
        for turn in seat["turns"]:
            del turn["asked_at"], turn["answered_at"]
    play["children"] = [_timeless(child) for child in play["children"]]
    return play
