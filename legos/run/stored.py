"""Groups that wait for training as JSON values, for a checkpoint."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from legos.records.episode import Episode
from legos.records.group import Group
from legos.records.sample import Sample

__all__ = ["groups_from_json", "groups_to_json", "kept_episodes"]

logger = logging.getLogger(__name__)


def groups_to_json(groups: Sequence[Group], *, num_episodes: int = 0) -> list[dict[str, Any]]:
    """Groups with their samples and metrics, and the ``kept_episodes`` of each."""
    waiting = [
        replace(
            group,
            plays=(),
            episodes=tuple(e.without_data() for e in kept_episodes(group.episodes, num_episodes)),
            tokens_generated=group.num_tokens,
            tokens_discarded={},
        )
        for group in groups
    ]
    return msgspec.to_builtins(waiting, enc_hook=float)  # NumPy's floats


def kept_episodes(episodes: Sequence[Episode], number: int) -> list[Episode]:
    """The first episodes and all that failed; none if the number is 0."""
    return [e for index, e in enumerate(episodes) if number and (index < number or e.error)]


def groups_from_json(stored: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Restore the groups that ``groups_to_json`` stored, with the tokens of their samples."""
    groups: list[Group] = []
    for item in stored:
        samples = msgspec.convert(item["samples"], tuple[Sample, ...])
        tokens = sum(len(sample.positions) for sample in samples)
        empty = msgspec.convert(
            {**item, "samples": [], "episodes": [], "tokens_generated": 0}, Group
        )
        episodes = _episodes(item.get("episodes", ()))
        groups.append(replace(empty, samples=samples, episodes=episodes, tokens_generated=tokens))
    return groups


def _episodes(stored: Sequence[Any]) -> tuple[Episode, ...]:
    """Restore episodes; returns none if a field holds a value of another type than declared."""
    try:
        return msgspec.convert(stored, tuple[Episode, ...])
    except msgspec.ValidationError as error:
        logger.warning("plays in the checkpoint will not be in the run's episodes: %s", error)
        return ()
