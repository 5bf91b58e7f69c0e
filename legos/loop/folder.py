"""The run folder: everything of one run in one portable place.

config.toml         the resolved settings, each with its source
metrics.jsonl       one object per optimiser step
evaluations.jsonl   one object per evaluation
episodes.jsonl      some plays of each step, as text
adapters/vN/        adapters in mlx-lm's format
checkpoints/        what a resumed run needs
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legos.data.episode import Episode
from legos.errors import CheckpointError
from legos.loop.atomic import write_folder
from legos.track.jsonl import kept_bytes
from legos.weights.adapter import Adapter, write_adapter

__all__ = ["RunFolder", "fresh_folder"]

CONFIG = "config.toml"


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.metrics = path / "metrics.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.adapters = path / "adapters"
        self.checkpoints = path / "checkpoints"

    def start(self, config: str) -> None:
        """Make the folder of a new run.

        Raises:
            CheckpointError: a run is there already, or the disk refuses.
        """
        if self.config.exists():
            raise CheckpointError(
                f"{self.path} already holds a run; go on with --resume {self.path}, "
                "or choose another --out"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.config.write_text(config)
        except OSError as error:
            raise CheckpointError(f"cannot start a run in {self.path}: {error}") from error

    def write_adapter(self, adapter: Adapter) -> Path:
        """Write ``adapters/vN``, whole or not at all."""
        place = self.adapters / f"v{adapter.version}"
        write_folder(place, lambda folder: write_adapter(adapter, folder))
        return place

    def adapter_folder(self, name: str | None = None) -> Path:
        """The folder of a named adapter, or of the newest.

        Raises:
            CheckpointError: there is none of that name, or none at all.
        """
        found = {path.name: path for path in self.adapters.glob("v*")}
        if not self.config.exists():
            raise CheckpointError(f"{self.path} holds no run: it has no {CONFIG}")
        if not found:
            raise CheckpointError(f"{self.path} holds no adapter yet")
        if name is None:
            return max(found.values(), key=lambda path: int(path.name[1:]))
        if name not in found:
            raise CheckpointError(
                f"{self.path} has no adapter {name!r}; it has {', '.join(sorted(found))}"
            )
        return found[name]

    def add_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Append plays as text, one JSON object a line.

        Raises:
            CheckpointError: the disk refuses.
        """
        lines = [json.dumps({"step": step, **_as_json(episode)}) + "\n" for episode in episodes]
        try:
            with self.episodes.open("a") as file:
                file.write("".join(lines))
        except OSError as error:
            raise CheckpointError(f"cannot write {self.episodes}: {error}") from error

    def cut_episodes(self, step: int) -> None:
        """Forget plays of later steps than the one that a resumed run goes on from."""
        if self.episodes.exists():
            os.truncate(self.episodes, kept_bytes(self.episodes, step))


def fresh_folder(parent: Path, name: str) -> Path:
    """``parent/name-1``, ``-2``, ...: the first that is not taken."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def _as_json(episode: Episode) -> dict[str, Any]:
    """A play for people and for the viewer: what was asked, said, and earned."""
    return {
        "arena": episode.arena,
        "task": episode.task.id,
        "seed": episode.task.seed,
        "rewards": dict(episode.rewards),
        "error": episode.error,
        "void": episode.void,
        "notes": list(episode.notes),
        "metrics": dict(episode.metrics),
        "seats": [
            {
                "role": rollout.role,
                "seat": rollout.seat,
                "turns": [
                    {
                        "asked": turn.messages[-1].content,
                        "said": turn.completion.text,
                        "move": turn.move,
                        "token_ids": list(turn.completion.token_ids),
                        "logprobs": [round(lp, 5) for lp in turn.completion.logprobs],
                        "versions": list(turn.completion.versions),
                    }
                    for turn in rollout.turns
                ],
            }
            for rollout in episode.rollouts
        ],
        "children": [_as_json(child) for child in episode.children],
    }
