"""The plays of a group as one compact record: what a player sends to the trainer."""

import zlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from legos.records.episode import Episode, Task
from legos.records.numbers import plain_value

LEVEL = 1  # of zlib: four times as fast as its default, and a fifth larger

Plays = Sequence[tuple[Task, int]]
"""The tasks of a group, each with the seed of its play."""

_encoder = msgspec.msgpack.Encoder(enc_hook=plain_value)
_decoder = msgspec.msgpack.Decoder(tuple[Episode, ...])


def pack_episodes(episodes: Sequence[Episode]) -> bytes:
    """Pack the episodes of a group, compressed: names of fields and prompts repeat.

    Tasks travel without their data, which may be of any type.
    """
    return zlib.compress(_encoder.encode([each.without_data() for each in episodes]), LEVEL)


def unpack_episodes(record: bytes, plays: Plays) -> list[Episode]:
    """Unpack the episodes of a group.

    Args:
        record: what ``pack_episodes`` returned.
        plays: the tasks of the group, each with the seed of its play; the episodes get these
            tasks, with their data. Spawned plays have tasks without data.
    """
    episodes = _decoder.decode(zlib.decompress(record))
    return [replace(episode, task=task) for episode, (task, _) in zip(episodes, plays, strict=True)]
