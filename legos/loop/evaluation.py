"""Evaluate a policy: exactly where all states of the game can be enumerated, otherwise by play."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, fields, replace
from statistics import fmean
from typing import Any, cast

from legos.arena.arena import Arena
from legos.arena.curriculum import success_rates
from legos.arena.cursor import plays_from
from legos.credit.means import evaluation_metrics, with_children
from legos.games.exact import GameReport, evaluate
from legos.games.scored import enumerated, scored_policy
from legos.play.step import play_all, warn_of
from legos.protocols import Scorer
from legos.records.count import Count
from legos.records.episode import Episode

logger = logging.getLogger(__name__)
SEED = 0x5EED  # evaluations use other plays than training
UNDEFINED = [field.name for field in fields(GameReport) if field.name != "arena"]
"""Metrics that are not defined without enumerating the states."""


class ArenaEvaluation:
    """Evaluates policies at one arena; what does not depend on the policy is computed once.

    Attributes:
        episodes: the plays of the newest evaluation; none where it is exact.
        count: what it asks the policy, and how many of its plays have begun and ended.
    """

    def __init__(
        self,
        arena: Arena,
        scorer: Scorer,
        *,
        plays: int = 64,
        temperature: float | None = None,
        concurrency: int = 256,
    ) -> None:
        """Enumerate and solve the arena's game, if it lists its starts and is not too large.

        Args:
            arena: the arena to evaluate on.
            scorer: reports the policy's probabilities.
            plays: number of plays, where the arena cannot be evaluated exactly.
            temperature: temperature of trained seats in these plays (0: greedy); None: as in
                training.
            concurrency: maximum number of these plays at the same time.

        Raises:
            ArenaError: the game is inconsistent.
        """
        self._arena = copy(arena)
        self._arena.matchmaker = arena.matchmaker.evaluation()
        self._scorer = scorer
        self._plays = plays
        self._temperature = temperature
        self._concurrency = concurrency
        self.episodes: Sequence[Episode] = ()
        self.count = Count(plays)
        self._tree = enumerated(arena)
        if self._tree is not None:
            self.count = Count(len(self._tree.graph.points), unit="positions")
        if self._tree is not None and (reason := self._tree.unsolved) is not None:
            logger.warning("%s: no metrics of optimal play: %s", arena.name, reason)

    @property
    def exact(self) -> bool:
        """Whether the metrics are computed exactly, without any play."""
        return self._tree is not None

    async def metrics(self, *, adapters: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The evaluation as JSON values; a metric that the arena does not define is None.

        Args:
            adapters: name of a trained policy -> name in the engine of the adapter that is
                evaluated in its place; None: the policies themselves.
        """
        if self._tree is not None:
            return asdict(await self.report(adapters=adapters))
        return await self._played(adapters or {})

    async def report(self, *, adapters: Mapping[str, str] | None = None) -> GameReport:
        """All metrics of the game, computed from move probabilities.

        An arena with several policies seats the policy of each role (``Arena.seats``); the seats
        of its first task count for all positions.

        Args:
            adapters: as for ``metrics``.
        """
        assert self._tree is not None  # the evaluation is exact
        live = adapters or {}
        players = {role: live.get(name, name) for role, name in self._policies_by_role().items()}
        scored = await scored_policy(self._tree, self._arena, self._scorer, players)
        return evaluate(self._tree, *scored)

    def _policies_by_role(self) -> dict[str, str]:
        """Role -> name of the policy that plays it."""
        arena = self._arena
        players = dict.fromkeys(arena.roles, arena.policies[0])
        if len(arena.policies) > 1:
            [(task, _)] = plays_from(arena, SEED, 1, held_out=False)  # which may be none
            seats = arena.seats(task)
            players |= {role: seat.adapter for role, seat in seats.items() if seat.trainable}
        return players

    async def _played(self, adapters: Mapping[str, str]) -> dict[str, Any]:
        """Means over plays that are not trained on, and the number of plays that did not end."""
        arena, self.count = self._arena, Count(self._plays)
        episodes = await play_all(
            arena,
            plays_from(arena, SEED, self._plays),
            asyncio.Semaphore(self._concurrency),
            temperature=self._temperature,
            adapters=adapters,
            stores=arena.stores.copy(),
            count=self.count,
        )
        self.episodes = episodes
        warn_of(episodes, where="in an evaluation ")
        return {
            "arena": arena.name,
            **dict.fromkeys(UNDEFINED),
            **evaluation_metrics(list(with_children(episodes))),
            "success": {
                level: fmean(found) for level, found in success_rates(arena, episodes).items()
            },
        }


class MixEvaluation:
    """Evaluates policies at several arenas, one after another."""

    def __init__(self, evaluations: Mapping[str, ArenaEvaluation]) -> None:
        """Combine evaluations.

        Args:
            evaluations: name of each arena -> its evaluation.
        """
        self._evaluations = dict(evaluations)
        self._evaluated = next(iter(evaluations))  # the arena that is evaluated now

    @property
    def episodes(self) -> Sequence[Episode]:
        """The plays of the newest evaluation, of all arenas."""
        return [episode for each in self._evaluations.values() for episode in each.episodes]

    @property
    def exact(self) -> bool:
        """Whether the metrics of all arenas are computed exactly, without any play."""
        return all(each.exact for each in self._evaluations.values())

    @property
    def count(self) -> Count:
        """That of the arena that is evaluated now."""
        count = self._evaluations[self._evaluated].count
        return replace(count, unit=f"{count.unit} of {self._evaluated}")

    async def metrics(self, *, adapters: Mapping[str, str] | None = None) -> dict[str, Any]:
        """``arena``: the names of all; ``arenas``: name of each -> its metrics."""
        found: dict[str, Any] = {}
        for name, each in self._evaluations.items():
            self._evaluated = name
            found[name] = await each.metrics(adapters=adapters)
        return {"arena": "+".join(found), "arenas": found}


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation under flat names: ``eval/vs_random_win``.

    Those of one of several arenas carry its name: ``eval/kuhn/vs_random_win``.
    """
    flat: dict[str, float] = {}
    arenas = cast("Mapping[str, Mapping[str, Any]]", metrics.get("arenas") or {})
    for arena, found in arenas.items():
        own = flat_metrics(found).items()
        flat |= {f"eval/{arena}/{name.removeprefix('eval/')}": value for name, value in own}
    for name, value in metrics.items():
        if name == "arenas":
            continue
        if isinstance(value, Mapping):
            numbers = cast("Mapping[str, float | None]", value)
            flat |= {f"eval/{name}_{k}": n for k, n in numbers.items() if n is not None}
        elif isinstance(value, int | float):
            flat[f"eval/{name}"] = value
    return flat
