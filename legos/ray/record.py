"""The plays of a group as one compact record: what a player sends to the trainer.

A record is MessagePack of the episodes, compressed with zlib at its fastest level: field names and
the prompts of a conversation repeat. Tasks travel without their data, which may be of any type; the
process that planned the group has them.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from legos.data.episode import Episode, Task

__all__ = ["pack_episodes", "unpack_episodes"]

LEVEL = 1  # of zlib: four times as fast as its default, and a fifth larger

_encoder = msgspec.msgpack.Encoder(enc_hook=float)  # NumPy's floats
_decoder = msgspec.msgpack.Decoder(tuple[Episode, ...])


def pack_episodes(episodes: Sequence[Episode]) -> bytes:
    """Pack the episodes of a group."""
    return zlib.compress(_encoder.encode([_without_data(e) for e in episodes]), LEVEL)


def unpack_episodes(record: bytes, plays: Sequence[tuple[Task, int]]) -> list[Episode]:
    """Unpack the episodes of a group.

    Args:
        record: what ``pack_episodes`` returned.
        plays: the tasks of the group, each with the seed of its play; the episodes get these
            tasks, with their data. Spawned plays have tasks without data.
    """
    episodes = _decoder.decode(zlib.decompress(record))
    return [replace(episode, task=task) for episode, (task, _) in zip(episodes, plays, strict=True)]


def _without_data(episode: Episode) -> Any:
    children = tuple(_without_data(child) for child in episode.children)
    if episode.task.data is None and not children:
        return episode
    return replace(episode, task=replace(episode.task, data=None), children=children)
