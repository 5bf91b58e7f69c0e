"""Scoring workers on a Ray cluster: a reward model in several processes, for all players."""

import asyncio
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

from legos.arena.registry import is_arena_file
from legos.errors import EndpointError
from legos.protocols import RewardModel
from legos.remote.ray.cluster import SPREAD
from legos.remote.ray.library import RayActorError, RayTaskError, cause_of, ray

__all__ = ["ScoringWorkers"]

TRIES = 3  # of one call, each with another worker
AGAIN_S = 0.5  # pause before the next try


class _Worker:
    """One process with the reward model."""

    def __init__(self, model: RewardModel) -> None:
        self._model = model

    def score(
        self, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[Any]
    ) -> list[float]:
        return list(self._model.score(prompts, completions, answers))


class ScoringWorkers:
    """Processes that score completions, asked in turn; whoever gives the same name shares them.

    They need a connection to a cluster, which players of ``legos train --ray`` have, and end with
    the process that started them, or when nobody has a ``ScoringWorkers`` of their name any more:
    keep it, for instance as an arena's ``functools.cached_property``.
    """

    def __init__(self, model: RewardModel, *, name: str, workers: int = 1) -> None:
        """Start the workers, or find those that were started under the name.

        Args:
            model: the reward model; it is pickled, and so is its class if that is in an arena file.
            name: name of the workers in the cluster.
            workers: number of processes.
        """
        module = sys.modules[type(model).__module__]
        if is_arena_file(module):  # which no other process can import by its name
            ray.cloudpickle.register_pickle_by_value(module)
        self._model, self._name = model, name
        self._workers = [self._worker(index) for index in range(workers)]
        self._turns = count()

    async def score(
        self, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[Any]
    ) -> list[float]:
        """[N] rewards of N completions; see ``RewardModel``.

        Raises:
            EndpointError: the workers died, again and again; only this play fails.
        """
        failure: Exception | None = None
        for _ in range(TRIES):
            index = next(self._turns) % len(self._workers)
            try:
                return await self._workers[index].score.remote(prompts, completions, answers)
            except RayActorError as error:
                failure = error
                await asyncio.sleep(AGAIN_S)  # Ray starts it again, unless its owner has died too
                self._workers[index] = self._worker(index)
            except RayTaskError as error:
                raise cause_of(error) from None
        raise EndpointError(f"the scoring workers died {TRIES} times: {failure}") from failure

    def _worker(self, index: int) -> Any:
        """The Ray actor of a worker."""
        return (
            ray.remote(_Worker)
            .options(
                name=f"legos-{self._name}-{index}",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                scheduling_strategy=SPREAD,
            )
            .remote(self._model)
        )
