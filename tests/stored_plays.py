"""The plays and metrics that a run has stored, without what differs between equal runs."""

import json
from pathlib import Path
from typing import Any

__all__ = ["TIMES", "timeless_plays"]

TIMES = (
    "step_s",
    "play/moves_per_s",
    "play/tokens_per_s",
    "loop/seconds_per_step",
    "loop/lag_max_s",
    "loop/engine_idle_share",
    "loop/trainer_idle_share",
    "loop/pass_max_s",
    "memory/peak_gib",
)
"""Metrics of a step that differ between two runs of the same settings and seed."""


def timeless_plays(path: Path) -> list[dict[str, Any]]:
    """Each line of a file of episodes, without what differs between equal runs."""
    return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]


def _timeless(play: dict[str, Any]) -> dict[str, Any]:
    for seat in play["seats"]:
        for turn in seat["turns"]:
            del turn["asked_at"], turn["answered_at"]
    play["children"] = [_timeless(child) for child in play["children"]]
    return play
