"""Groups that wait for training as JSON values, for a checkpoint."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from legos.records.episode import Episode
from legos.records.group import Group
from legos.records.sample import Sample

__all__ = ["groups_from_json", "groups_to_json", "kept_episodes"]

logger = logging.getLogger(__name__)
_FIELDS = tuple(field.name for field in fields(Sample))


def groups_to_json(groups: Sequence[Group], *, num_episodes: int = 0) -> list[dict[str, Any]]:
    """Samples and metrics of groups, and the ``kept_episodes`` of each."""
    return [
        {
            "samples": [[getattr(sample, name) for name in _FIELDS] for sample in group.samples],
            "metrics": dict(group.metrics),
            "weights": dict(group.weights),
            "num_tasks": group.num_tasks,
            "arena": group.arena,
            "episodes": [
                msgspec.to_builtins(episode.without_data(), enc_hook=float)  # NumPy's floats
                for episode in kept_episodes(group.episodes, num_episodes)
            ],
        }
        for group in groups
    ]


def kept_episodes(episodes: Sequence[Episode], number: int) -> list[Episode]:
    """The first episodes and all that failed; none if the number is 0."""
    return [e for index, e in enumerate(episodes) if number and (index < number or e.error)]


def groups_from_json(stored: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Restore the groups that ``groups_to_json`` stored, with the tokens of their samples."""
    groups: list[Group] = []
    for item in stored:
        samples = tuple(
            msgspec.convert(dict(zip(_FIELDS, values, strict=True)), Sample)
            for values in item["samples"]
        )
        groups.append(
            Group(
                samples=samples,
                episodes=_episodes(item.get("episodes", ())),
                tokens_generated=sum(len(sample.positions) for sample in samples),
                metrics=item["metrics"],
                weights=item["weights"],
                num_tasks=item["num_tasks"],
                arena=item.get("arena", ""),
            )
        )
    return groups


def _episodes(stored: Sequence[Any]) -> tuple[Episode, ...]:
    """Restore episodes; returns none if a field holds a value of another type than declared."""
    try:
        return msgspec.convert(stored, tuple[Episode, ...])
    except msgspec.ValidationError as error:
        logger.warning("plays in the checkpoint will not be in the run's episodes: %s", error)
        return ()
