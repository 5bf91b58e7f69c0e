"""How good a policy is at an arena: exactly where the game can be written out, else by play."""

import asyncio
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from legos.arena.arena import Arena
from legos.arena.checks import checked_tasks
from legos.arena.exact import GameReport, GameTree, decision_points, evaluate
from legos.arena.game_arena import GameArena
from legos.arena.step import play_all
from legos.data.episode import Task
from legos.data.message import Message
from legos.data.seeds import mix
from legos.errors import ArenaError
from legos.protocols import Scorer

__all__ = ["ArenaEvaluation", "flat_figures"]

SEED = 0x5EED  # plays of an evaluation never meet those of training
UNDEFINED = (  # where an arena is not written out
    "optimal_move_rate",
    "exploitability",
    "illegal_probability",
    "vs_random",
    "vs_optimal",
)


class ArenaEvaluation:
    """Evaluates one arena again and again; what does not depend on the policy is computed once.

    Attributes:
        tokens_generated: tokens that evaluations by play have had sampled so far.
    """

    def __init__(self, arena: Arena, scorer: Scorer, *, plays: int = 64) -> None:
        """Write the game out, where it is one whose starts are listed.

        Args:
            arena: what is evaluated.
            scorer: tells the policy's probabilities.
            plays: how many plays stand for an arena that cannot be written out.

        Raises:
            ArenaError: the game contradicts itself, or is too large to be written out.
        """
        self._arena = arena
        self._scorer = scorer
        self._plays = plays
        self.tokens_generated = 0
        self._tree: GameTree | None = None
        if isinstance(arena, GameArena) and arena.game.starts() is not None:
            try:
                self._tree = GameTree(arena.game)
            except ArenaError as error:
                error.add_note("a game whose starts() returns None is evaluated by play instead")
                raise

    async def figures(self) -> dict[str, Any]:
        """The evaluation as JSON values; a figure that the arena does not define is None."""
        if self._tree is not None:
            return (await self.report()).as_dict()
        return await self._played()

    async def report(self) -> GameReport:
        """Every figure of the game, from the policy's own move probabilities.

        Raises:
            ArenaError: the arena is no game that can be written out.
        """
        if self._tree is None:
            raise ArenaError(
                f"arena {self._arena.name!r} cannot be evaluated exactly; it lists no starts"
            )
        points = decision_points(self._tree)
        prompts = [([Message("user", point.prompt)], point.legal) for point in points]
        policy: dict[tuple[str, str], dict[str, float]] = {}
        illegal: dict[tuple[str, str], float] = {}
        for point, scores in zip(points, await self._scorer.score(prompts), strict=True):
            chances = [math.exp(score) for score in scores]
            total = sum(chances)
            key = (point.role, point.view)
            illegal[key] = max(0.0, 1.0 - total)
            policy[key] = {
                move: chance / total if total else 1.0 / len(chances)
                for move, chance in zip(point.legal, chances, strict=True)
            }
        return evaluate(self._tree, policy, illegal)

    async def _played(self) -> dict[str, Any]:
        """Mean rewards, in all and by role, of plays that nothing is trained on."""
        arena, slots = self._arena, asyncio.Semaphore(self._plays)
        plays = list(islice(_plays(arena), self._plays))
        episodes = await play_all(arena, plays, slots)
        self.tokens_generated += sum(episode.num_tokens for episode in episodes)
        played = [e for e in episodes if not e.error and not e.void]
        by_role = {role: _mean([e.rewards[role] for e in played]) for role in arena.roles}
        return {
            "arena": arena.name,
            **dict.fromkeys(UNDEFINED),
            "reward_mean": _mean([r for e in played for r in e.rewards.values()]),
            "reward": by_role,
            "plays": len(played),
        }


def flat_figures(figures: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation under flat names: ``eval/vs_random_win``."""
    flat: dict[str, float] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            numbers = cast("Mapping[str, float | None]", value)
            flat |= {f"eval/{name}_{k}": n for k, n in numbers.items() if n is not None}
        elif isinstance(value, int | float):
            flat[f"eval/{name}"] = value
    return flat


def _plays(arena: Arena) -> Iterator[tuple[Task, int]]:
    """Tasks with the seed of each, the same at every evaluation."""
    tasks = checked_tasks(arena, random.Random(SEED))
    return ((task, mix(SEED, index)) for index, task in enumerate(tasks))


def _mean(rewards: Sequence[float]) -> float | None:
    return sum(rewards) / len(rewards) if rewards else None
