"""The state of a run, which a checkpoint holds next to the backend's: taken and restored as one."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from legos.errors import CheckpointError, ConfigError
from legos.loop.batcher import Batcher
from legos.loop.mix import Mix
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.protocols import Tracker
from legos.run.checkpoint import read_state
from legos.run.evaluations import Evaluations, Results
from legos.run.stored import groups_from_json, groups_to_json


class RunState:
    """The parts of a run that have state, and the metrics of the newest step.

    A step can be complete when the run ends before its line of metrics is written: the publication
    of its adapter fails, or the disk is full. A resumed run then writes it.

    Attributes:
        unlogged: metrics of the newest step, if its line is still to be written.
    """

    def __init__(
        self, trainer: PolicyTrainer, mix: Mix, batcher: Batcher, evaluations: Evaluations
    ) -> None:
        self._trainer = trainer
        self._mix = mix
        self._batcher = batcher
        self._evaluations = evaluations
        self.unlogged: Metrics | None = None
        self._logged = 0  # newest step whose line was written, or restored

    def take(self, *, plays_kept: float | None) -> Callable[[], dict[str, Any]]:
        """Take the state as it is now.

        Args:
            plays_kept: share of the tasks of waiting groups whose plays are kept; None: none.

        Returns:
            A function that gives the state as JSON values; it may be called on any thread, because
            converting the groups takes longest.
        """
        queued = self._batcher.queued  # immutable
        unlogged = self.unlogged
        if unlogged is None and self._trainer.step > self._logged:
            unlogged = self._trainer.metrics
        state = {
            "arenas": self._mix.state(),  # a copy
            **deepcopy(
                {
                    "trainer": self._trainer.state(),
                    "batcher": self._batcher.state(),
                    "unlogged": unlogged,
                    **self._evaluations.state(),
                }
            ),
        }

        def values() -> dict[str, Any]:
            groups = {
                name: groups_to_json(waiting, plays_kept=plays_kept)
                for name, waiting in queued.items()
            }
            return {**state, "queued": groups}

        return values

    def restore(
        self, place: Path, state: Results | None = None, *, same_evaluation: bool = True
    ) -> None:
        """Restore what ``take`` took.

        Args:
            place: a checkpoint.
            state: replaces its state.
            same_evaluation: whether evaluations use the same plays; otherwise there are no results
                yet, and the one of this step is made again.

        Raises:
            CheckpointError: it belongs to another model or arena.
            ConfigError: evaluations lack the metric of ``loop.keep_best``.
        """
        state = read_state(place) if state is None else state
        try:
            if not same_evaluation:
                before = state["trainer"]["step"] - 1
                state |= {"first": {}, "last": {}, "evaluated_step": before}
                state |= {"best": None, "evaluating": None}
            self._trainer.restore(place, state["trainer"])
            self._mix.restore(state["arenas"])
            queued = {name: groups_from_json(each) for name, each in state["queued"].items()}
            self._batcher.restore(state["batcher"], queued, versions=self._trainer.versions)
            self._evaluations.restore(state)
            self.unlogged, self._logged = state["unlogged"], self._trainer.step
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{place} does not fit this run: {error!r}; was it written by another version?"
            ) from error

    def fork(self, place: Path, *, same_credit: bool, same_evaluation: bool) -> None:
        """Restore a checkpoint of another run as the start of this one; see ``Run.fork``."""
        state: Results = {**read_state(place), "best": None, "evaluating": None, "unlogged": None}
        if not same_credit:
            for name, arena in self._mix.arenas.items():
                credit = arena.credit_assigner
                state["arenas"][name]["credit"] = credit.state() if credit else {}
        self.restore(place, state, same_evaluation=same_evaluation)
        if not same_credit:
            self._batcher.discard_rest("forked")

    def log_restored(self, tracker: Tracker) -> None:
        """Log the line that the process before did not write."""
        if self.unlogged is not None:
            self.log(self.unlogged, tracker)

    def log(self, metrics: Metrics, tracker: Tracker) -> None:
        """Log the line of the newest step; it is kept for a checkpoint where that fails."""
        self.unlogged = metrics
        tracker.log(metrics, step=self._trainer.step)
        self.unlogged, self._logged = None, self._trainer.step
