"""Scoring workers on a Ray cluster: a reward model in several processes, for all players."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

from legos.errors import EndpointError
from legos.protocols import RewardModel
from legos.ray.cluster import SPREAD
from legos.ray.library import RayActorError, RayTaskError, cause_of, ray

__all__ = ["ScoringWorkers"]

TRIES = 3  # of one call, each with another worker


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

    They need a connection to a cluster, which players of ``legos train --ray`` have.
    """

    def __init__(self, model: RewardModel, *, name: str, workers: int = 1) -> None:
        """Start the workers, or find those that were started under the name.

        Args:
            model: the reward model; it is pickled.
            name: name of the workers in the cluster.
            workers: number of processes.
        """
        kind = ray.remote(_Worker)
        self._workers = [
            kind.options(
                name=f"legos-{name}-{index}",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                scheduling_strategy=SPREAD,
            ).remote(model)
            for index in range(workers)
        ]
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
            worker = self._workers[next(self._turns) % len(self._workers)]
            try:
                return await worker.score.remote(prompts, completions, answers)
            except RayActorError as error:
                failure = error
                await asyncio.sleep(0.5)  # Ray starts it again
            except RayTaskError as error:
                raise cause_of(error) from None
        raise EndpointError(f"the scoring workers died {TRIES} times: {failure}") from failure
