"""Evaluate a trainer's policy from a script, or make the evaluation that a run configures."""

from typing import Any

from legos.arena.arena import Arena
from legos.config.schema import RunConfig
from legos.loop.evaluation import ArenaEvaluation, MixEvaluation
from legos.loop.mix import Mix
from legos.protocols import Scorer
from legos.wiring.trainer import Trainer


def evaluation_of(config: RunConfig, mix: Mix, scorer: Scorer) -> ArenaEvaluation | MixEvaluation:
    """Make the evaluation of a run's settings."""
    found = {
        name: ArenaEvaluation(
            arena,
            scorer,
            plays=config.loop.evaluation_plays,
            temperature=config.loop.evaluation_temperature,
            concurrency=config.play.concurrency,
        )
        for name, arena in mix.arenas.items()
    }
    return MixEvaluation(found) if len(found) > 1 else next(iter(found.values()))


async def evaluate(
    arena: Arena, trainer: Trainer, *, plays: int = 64, temperature: float | None = None
) -> dict[str, Any]:
    """Evaluate the newest policy in an arena; returns JSON values.

    Args:
        arena: the arena; a game that lists its starts is evaluated exactly.
        trainer: trainer of the policy; its adapter is published first.
        plays: number of plays to sample in any other arena.
        temperature: sampling temperature of these plays, 0: greedy; None: the arena's.

    Returns:
        ``arena``, ``policy_version`` and the arena's metrics; None where a metric is undefined.
    """
    await trainer.publish_weights()
    evaluation = ArenaEvaluation(arena, trainer.client(), plays=plays, temperature=temperature)
    return {"policy_version": trainer.version, **await evaluation.metrics()}
