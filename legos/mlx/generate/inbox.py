"""What comes into the engine on any thread, and how results go back to those who asked."""

import logging
from collections import deque
from collections.abc import Sequence

from legos.device.worker import answer, taken
from legos.errors import EngineError
from legos.mlx.generate.score import Score
from legos.mlx.generate.sequences import SequenceState
from legos.protocols import Deliver
from legos.records.request import Request, Result

logger = logging.getLogger(__name__)
Message = tuple[Deliver, Sequence[tuple[int, Request]] | frozenset[int]] | Score
"""Requests that come in, or the numbers of those to be cancelled; or a score."""


def num_requests(inbox: deque[Message]) -> int:
    """Number of requests that come in; callable on any thread."""
    messages = (m for m in tuple(inbox) if not isinstance(m, Score))  # tuple() copies in one piece
    return sum(len(some) for _, some in messages if not isinstance(some, frozenset))


def refuse_all(inbox: deque[Message]) -> None:
    """Answer all messages of a closed engine with an error."""
    error = EngineError("the engine was closed")
    for message in taken(inbox):
        if isinstance(message, Score):
            answer(message.future, error)
            continue
        deliver, requests = message
        if not isinstance(requests, frozenset):
            _deliver(deliver, [(number, error) for number, _ in requests])


def deliver_all(outcomes: Sequence[tuple[SequenceState, Result]]) -> None:
    """Give each receiver its results in one call."""
    by_receiver: dict[Deliver, list[tuple[int, Result]]] = {}
    for sequence, result in outcomes:
        by_receiver.setdefault(sequence.deliver, []).append((sequence.number, result))
    for deliver, results in by_receiver.items():
        _deliver(deliver, results)


def _deliver(deliver: Deliver, results: Sequence[tuple[int, Result]]) -> None:
    """Call a receiver; one that fails harms no other."""
    try:
        deliver(results)
    except Exception:
        logger.exception("a receiver of results failed; the engine goes on")
