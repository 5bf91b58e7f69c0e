"""Evaluating what a trainer has trained, from a script."""

from typing import Any

from legos.arena.arena import Arena
from legos.arena.evaluate import ArenaEvaluation
from legos.build.trainer import Trainer

__all__ = ["evaluate"]


async def evaluate(arena: Arena, trainer: Trainer) -> dict[str, Any]:
    """Figures of the newest policy at an arena, as JSON values.

    Args:
        arena: what is evaluated; exactly where it is a game that lists its starts.
        trainer: its adapter is published first.

    Returns:
        ``arena``, ``policy_version`` and the arena's figures; None where one is not defined.
    """
    await trainer.publish_weights()
    figures = await ArenaEvaluation(arena, trainer.client()).figures()
    return {"policy_version": trainer.version, **figures}
