"""Requests and results as bytes between two processes of a run on a Ray cluster.

They are MessagePack of the records, which is several times as fast as pickles. The trees of legal
answers, which a game's moves share, are packed once at one end and built once at the other.
"""

import pickle
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec
import numpy as np

from legos.errors import EngineError
from legos.records.choices import ChoiceNode
from legos.records.message import Generated
from legos.records.request import Grammar, Progress, Request, Result
from legos.remote.ray.packed_error import packed_error

__all__ = [
    "RequestFrame",
    "Results",
    "pack_requests",
    "pack_results",
    "unpack_requests",
    "unpack_results",
]

MOST_TREES = 4096  # trees of legal answers that are kept, packed or built

RequestFrame = tuple[Sequence[tuple[int, Request]], Sequence[int]]
"""Requests with their numbers, and numbers of requests to cancel."""

Results = Sequence[tuple[int, Result]]

_PackedNode = tuple[tuple[int, ...], bool, tuple[int, ...]]
"""Of a node of legal answers: its legal tokens, whether it is whole, and its children's tokens."""


class _PackedResults(msgspec.Struct, array_like=True):
    """Results of one moment by their kind; within a request they keep their order."""

    progress: list[tuple[int, Progress]]
    generated: list[tuple[int, Generated]]
    errors: list[tuple[int, bytes]]


def pack_requests(frames: Sequence[RequestFrame]) -> bytes:
    """Pack requests; the test of stop texts and the grammar stay behind (``unpack_requests``)."""
    return _encoder.encode(frames)


def unpack_requests(data: bytes) -> Sequence[RequestFrame]:
    """Unpack requests; ``stop`` and ``json_schema`` say what was left behind."""
    return _requests.decode(data)


def pack_results(frames: Sequence[Results]) -> bytes:
    """Pack results; a request's ``Progress`` before its end."""
    packed = _PackedResults([], [], [])
    for number, result in (item for frame in frames for item in frame):
        if isinstance(result, Generated):
            packed.generated.append((number, result))
        elif isinstance(result, Progress):
            packed.progress.append((number, result))
        else:
            packed.errors.append((number, packed_error(result, EngineError)))
    return _encoder.encode(packed)


def unpack_results(data: bytes) -> Sequence[Results]:
    """Unpack results."""
    packed = _results.decode(data)
    errors: Results = [(number, pickle.loads(error)) for number, error in packed.errors]
    found: Results = [*packed.progress, *packed.generated, *errors]
    return [found] if found else []


def _encoded(value: Any) -> Any:
    """What MessagePack does not know."""
    if isinstance(value, ChoiceNode):
        return _packed_tree(value)
    if isinstance(value, np.generic):
        return cast("np.generic[Any]", value).item()
    if callable(value) or isinstance(value, Grammar):
        return None  # made again where the request arrives
    raise NotImplementedError(f"a request of another process cannot hold {type(value).__name__}")


def _decoded(kind: type, value: Any) -> Any:
    return _tree(value) if kind is ChoiceNode else value


@lru_cache(MOST_TREES)
def _packed_tree(tree: ChoiceNode) -> bytes:
    nodes: list[ChoiceNode] = []
    waiting = [tree]
    while waiting:  # without recursion, since an answer may have thousands of tokens
        nodes.append(waiting.pop())
        waiting += nodes[-1].children.values()
    packed = [(node.legal, node.whole, tuple(node.children)) for node in reversed(nodes)]
    return _encoder.encode(packed)


@lru_cache(MOST_TREES)
def _tree(packed: bytes) -> ChoiceNode:
    built: list[ChoiceNode] = []  # of which the last ones belong to the next node that has children
    for legal, whole, tokens in _nodes.decode(packed):
        first = len(built) - len(tokens)
        children = dict(zip(tokens, built[first:], strict=True))
        built[first:] = [ChoiceNode(children, legal, whole=whole)]
    (root,) = built
    return root


_encoder = msgspec.msgpack.Encoder(enc_hook=_encoded)
_requests = msgspec.msgpack.Decoder(list[RequestFrame], dec_hook=_decoded)
_results = msgspec.msgpack.Decoder(_PackedResults)
_nodes = msgspec.msgpack.Decoder(list[_PackedNode])  # children before their parents
