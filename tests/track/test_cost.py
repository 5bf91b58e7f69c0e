"""What logging costs: seconds of a step, on the thread of the run and beside it."""

import sys
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import pytest
from made_records import make_episode

from legos.track.beside import TrackerBeside
from legos.track.experiment import ExperimentTracker
from legos.track.wandb import start_wandb

STEPS = 200


class Timed(ExperimentTracker):
    """Adds up the time that its thread computes."""

    seconds = 0.0

    def log(self, *args: Any, **named: Any) -> None:
        started = thread_time()
        super().log(*args, **named)
        self.seconds += thread_time() - started

    def plays(self, *args: Any, **named: Any) -> None:
        started = thread_time()
        super().plays(*args, **named)
        self.seconds += thread_time() - started


@pytest.mark.nightly
def test_logging_takes_less_than_a_hundredth_of_a_step_of_a_second(tmp_path: Path) -> None:
    import wandb

    run = start_wandb(tmp_path / "run", mode="offline", config={})
    timed = Timed(wandb, run, tmp_path / "run", better=lambda _: {})
    tracker, called = TrackerBeside(timed, "W&B", waiting=100 * STEPS), 0.0
    episodes = [make_episode({"only": float(index % 3)}) for index in range(256)]
    ratios = np.exp(np.random.default_rng(0).normal(0, 0.1, 100_000)).astype(np.float32)
    for step in range(1, STEPS + 1):
        metrics = {f"metric_{index}": index / step for index in range(100)}
        started = perf_counter()
        tracker.plays(episodes, step=step, evaluation=False, ratios=lambda: ratios)
        tracker.log(metrics, step=step)
        called += perf_counter() - started
    tracker.close()
    wandb.teardown()  # programs of other tests would use its process
    here, beside = 1e3 * called / STEPS, 1e3 * timed.seconds / STEPS
    sys.stdout.write(f"ms a step: {here:.3f} on the thread of the run, {beside:.3f} beside it\n")
    assert here + beside < 10
