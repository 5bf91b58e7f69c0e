"""Groups that wait for training as JSON values, for a checkpoint."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from legos.records.group import Group
from legos.records.numbers import plain_value
from legos.run.kept import kept_plays

logger = logging.getLogger(__name__)


def groups_to_json(
    groups: Sequence[Group], *, plays_kept: float | None = None
) -> list[dict[str, Any]]:
    """Groups with their samples and metrics, and some of their plays.

    Args:
        groups: the groups.
        plays_kept: share of the tasks whose plays are kept (``kept_plays``); None: no play is.
    """
    waiting = [
        replace(
            group,
            plays=(),
            episodes=()
            if plays_kept is None
            else tuple(episode.without_data() for episode in kept_plays([group], plays_kept)),
            tokens_generated=group.num_tokens,
            tokens_discarded={},
        )
        for group in groups
    ]
    return msgspec.to_builtins(waiting, enc_hook=plain_value)


def groups_from_json(stored: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Restore the groups that ``groups_to_json`` stored."""
    return [_group(item) for item in stored]


def _group(item: Mapping[str, Any]) -> Group:
    """A group; without its plays if a field of one has a value of another type than declared."""
    try:
        return msgspec.convert(item, Group)
    except msgspec.ValidationError as error:
        group = msgspec.convert({**item, "episodes": ()}, Group)
        logger.warning("plays in the checkpoint will not be in the run's episodes: %s", error)
        return group
