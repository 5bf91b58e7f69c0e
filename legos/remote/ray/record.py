"""The plays of a group as one compact record: what a player sends to the trainer.

A record is MessagePack of the episodes, compressed with zlib at its fastest level: field names and
the prompts of a conversation repeat. Tasks travel without their data, which may be of any type; the
process that planned the group has them.
"""

import pickle
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from legos.errors import ArenaError
from legos.records.episode import Episode, Task
from legos.remote.ray.packed_error import packed_error

__all__ = ["Played", "Plays", "pack_episodes", "pack_played", "unpack_episodes", "unpack_played"]

Plays = Sequence[tuple[Task, int]]
"""The tasks of a group, each with the seed of its play."""

Played = tuple[int, Sequence[Episode] | Exception]
"""The number of a group, and its episodes or why there are none."""

LEVEL = 1  # of zlib: four times as fast as its default, and a fifth larger

_encoder = msgspec.msgpack.Encoder(enc_hook=float)  # NumPy's floats
_decoder = msgspec.msgpack.Decoder(tuple[Episode, ...])
_played = msgspec.msgpack.Decoder(list[tuple[int, bool, bytes]])


def pack_episodes(episodes: Sequence[Episode]) -> bytes:
    """Pack the episodes of a group."""
    return zlib.compress(_encoder.encode([_without_data(e) for e in episodes]), LEVEL)


def unpack_episodes(record: bytes, plays: Plays) -> list[Episode]:
    """Unpack the episodes of a group.

    Args:
        record: what ``pack_episodes`` returned.
        plays: the tasks of the group, each with the seed of its play; the episodes get these
            tasks, with their data. Spawned plays have tasks without data.
    """
    episodes = _decoder.decode(zlib.decompress(record))
    return [replace(episode, task=task) for episode, (task, _) in zip(episodes, plays, strict=True)]


def pack_played(played: Sequence[Played]) -> bytes:
    """Pack groups that have ended."""
    packed: list[tuple[int, bool, bytes]] = []
    for number, result in played:
        if isinstance(result, Exception):
            packed.append((number, True, packed_error(result, ArenaError)))
        else:
            packed.append((number, False, pack_episodes(result)))
    return _encoder.encode(packed)


def unpack_played(data: bytes) -> Sequence[tuple[int, bytes | Exception]]:
    """Unpack groups as far as their records (``unpack_episodes``)."""
    return [
        (number, pickle.loads(packed) if failed else packed)
        for number, failed, packed in _played.decode(data)
    ]


def _without_data(episode: Episode) -> Any:
    children = tuple(_without_data(child) for child in episode.children)
    if episode.task.data is None and not children:
        return episode
    return replace(episode, task=replace(episode.task, data=None), children=children)
