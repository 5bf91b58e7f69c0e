"""Evaluating a policy: what a trainer has trained, from a script, or as a run is configured."""

from typing import Any

from legos.arena.arena import Arena
from legos.config.schema import RunConfig
from legos.loop.evaluation import ArenaEvaluation
from legos.protocols import Scorer
from legos.wiring.trainer import Trainer

__all__ = ["evaluate", "evaluation_of"]


def evaluation_of(config: RunConfig, arena: Arena, scorer: Scorer) -> ArenaEvaluation:
    """The evaluation that a run's settings ask for."""
    return ArenaEvaluation(
        arena,
        scorer,
        plays=config.loop.evaluation_plays,
        temperature=config.loop.evaluation_temperature,
        concurrency=config.play.concurrency,
    )


async def evaluate(
    arena: Arena, trainer: Trainer, *, plays: int = 64, temperature: float | None = None
) -> dict[str, Any]:
    """Figures of the newest policy at an arena, as JSON values.

    Args:
        arena: what is evaluated; exactly where it is a game that lists its starts.
        trainer: its adapter is published first.
        plays: how many plays stand for any other arena.
        temperature: of the policy in these plays, 0: greedy; None: the arena's.

    Returns:
        ``arena``, ``policy_version`` and the arena's figures; None where one is not defined.
    """
    await trainer.publish_weights()
    evaluation = ArenaEvaluation(arena, trainer.client(), plays=plays, temperature=temperature)
    return {"policy_version": trainer.version, **await evaluation.figures()}
