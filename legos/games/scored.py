"""The policy of an adapter at every position of a game, from the model's own probabilities."""

import logging
import math
from collections.abc import Mapping, Sequence

from legos.arena.arena import Arena, GameArena
from legos.errors import ArenaError, GameSizeError
from legos.games.exact import GameTree, Policy
from legos.games.graph import DecisionPoint
from legos.protocols import Scorer
from legos.records.message import Message

logger = logging.getLogger(__name__)


def enumerated(arena: Arena) -> GameTree | None:
    """The states of the arena's game; None: it does not list its starts, or has too many states.

    Raises:
        ArenaError: the game is inconsistent.
    """
    if not isinstance(arena, GameArena) or arena.game.starts() is None:
        return None
    try:
        return GameTree(arena.game)
    except GameSizeError as error:
        logger.warning("evaluated by play, not exactly: %s", error)
    except ArenaError as error:
        error.add_note("a game whose starts() returns None is evaluated by play instead")
        raise
    return None


async def scored_policy(
    tree: GameTree, arena: Arena, scorer: Scorer, adapters: Mapping[str, str]
) -> tuple[Policy, Mapping[tuple[str, str], float]]:
    """Score all legal moves of all positions.

    Args:
        tree: the arena's game.
        arena: its system messages are part of the questions.
        scorer: reports the probabilities.
        adapters: role -> the scorer's adapter that answers for it.

    Returns:
        Probabilities over the legal moves; and (role, view) -> the probability that the model gives
        to anything but a legal move, which they do not contain.
    """
    points_of: dict[str, list[DecisionPoint]] = {}
    for point in tree.graph.points:
        points_of.setdefault(adapters[point.role], []).append(point)
    policy: dict[tuple[str, str], dict[str, float]] = {}
    illegal: dict[tuple[str, str], float] = {}
    for adapter, points in points_of.items():
        prompts = [(_question(arena, point), point.legal) for point in points]
        found = await scorer.score(prompts, adapter=adapter, restricted=arena.restrict_choices)
        for point, scores in zip(points, found, strict=True):
            key = (point.role, point.view)
            policy[key], illegal[key] = legal_shares(point.legal, scores)
    return policy, illegal


def legal_shares(legal: Sequence[str], scores: Sequence[float]) -> tuple[dict[str, float], float]:
    """Probabilities over the legal moves, and the probability of anything else.

    Args:
        legal: the legal moves.
        scores: log-probability (nats) of each as the whole answer.
    """
    most = max(scores)  # taken off first: a long move may be too unlikely for a float
    odds = [math.exp(score - most) if most > -math.inf else 1.0 for score in scores]
    total, mass = sum(odds), sum(map(math.exp, scores))
    shares = {move: one / total for move, one in zip(legal, odds, strict=True)}
    return shares, max(0.0, 1.0 - mass)


def _question(arena: Arena, point: DecisionPoint) -> list[Message]:
    """The messages with which a role is asked for a move."""
    system = arena.system.get(point.role)
    first = [] if system is None else [Message("system", system)]
    return [*first, Message("user", point.prompt)]
