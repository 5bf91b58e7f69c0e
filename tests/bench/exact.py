"""The exact evaluation of a game: its decisions are enumerated and scored together."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

from legos.arena.registry import advice
from legos.config.resolve import resolve
from legos.loop.evaluation import ArenaEvaluation
from legos.protocols import Scorer
from legos.records.message import Questions
from legos.wiring.arena import make_arena
from legos.wiring.trainer import trainer_of

__all__ = ["exact_evaluation"]


class _CountedScores:
    """A scorer, its calls and their time."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.calls = 0
        self.decisions = 0
        self.seconds = 0.0

    async def score(self, prompts: Questions, **options: Any) -> Sequence[Sequence[float]]:
        """Score, and count."""
        started = perf_counter()
        found = await self._scorer.score(prompts, **options)
        self.seconds += perf_counter() - started
        self.calls += 1
        self.decisions += len(prompts)
        return found


def exact_evaluation(arena: str) -> dict[str, float]:
    """The built-in model's exact evaluation in a game.

    Args:
        arena: name of the game.

    Returns:
        ``decisions`` that were scored, ``score_calls`` in which, and the seconds to enumerate the
        game (``enumeration_s``), to score (``scoring_s``), and of all (``all_s``).
    """
    config = resolve(overrides={"arena": arena}, recommend=advice).config
    with closing(trainer_of(config, inline=False)) as trainer:
        started = perf_counter()
        scorer = _CountedScores(trainer.client())
        evaluation = ArenaEvaluation(make_arena(config.arena, None), scorer)
        enumerated = perf_counter()

        async def figures() -> Mapping[str, Any]:
            await trainer.publish_weights()
            return await evaluation.metrics()

        asyncio.run(figures())
        ended = perf_counter()
    return {
        "decisions": scorer.decisions,
        "score_calls": scorer.calls,
        "enumeration_s": enumerated - started,
        "scoring_s": scorer.seconds,
        "all_s": ended - started,
    }
