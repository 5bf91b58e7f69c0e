"""Checkpoints are written next to training: none delays a step, and a stop waits for it."""

import asyncio
import shutil
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeTracker
from run_world import Duel, World, check_balance

from legos.errors import CheckpointError
from legos.play.table import Table
from legos.protocols import Snapshot
from legos.run.checkpoint import checkpoint_steps, read_state
from legos.run.run import Run
from legos.track.jsonl import JsonlTracker


class Slow(FakeBackend):
    """Its snapshot of one version is written only after ``may_write`` is set."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.slow_version = version
        self.began, self.may_write = threading.Event(), threading.Event()

    def snapshot(self) -> "Future[Snapshot]":
        write, slow = super().snapshot().result(), self.version == self.slow_version

        def slowly(folder: Path) -> None:
            if slow:
                self.began.set()
                assert self.may_write.wait(20), "the run waits for its checkpoint"
            write(folder)

        found: Future[Snapshot] = Future()
        found.set_result(slowly)
        return found


class Releases(JsonlTracker):
    """Lets the slow checkpoint be written when the metrics of a step are logged."""

    def __init__(self, world: World, backend: Slow, step: int) -> None:
        super().__init__(world.folder.metrics)
        self._world, self._backend, self._step = world, backend, step
        self.steps_before: list[int] = []  # checkpoints that were written by then

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        super().log(metrics, step=step)
        if step == self._step:
            assert self._backend.began.wait(20)
            self.steps_before = list(checkpoint_steps(self._world.folder.checkpoints))
            self._backend.may_write.set()


def test_a_slow_checkpoint_does_not_delay_the_steps(whole: World, tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=1) as writer:
        world = World(tmp_path / "run", writer=writer, checkpoint_every=3).start()
        world.backend = world.trainer.backend = slow = Slow(3)
        tracker = Releases(world, slow, step=5)
        assert world.go(tracker=tracker)
    assert tracker.steps_before == [0]
    assert list(checkpoint_steps(world.folder.checkpoints)) == [0, 3, 6]
    state = read_state(world.folder.checkpoints / "step-000003")
    assert state["trainer"]["step"] == 3  # of its own step, although it was written later
    place = shutil.copytree(world.folder.path, tmp_path / "killed")
    shutil.rmtree(place / "checkpoints" / "step-000006")
    resumed = World(place).resume()
    assert resumed.run.step == 3
    assert resumed.go()
    assert resumed.backend.trail == whole.backend.trail
    assert resumed.arena.state() == whole.arena.state()


def test_a_stop_waits_for_the_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=1) as writer:
        world = World(tmp_path / "run", writer=writer, checkpoint_every=3).start()
        world.backend = world.trainer.backend = slow = Slow(3)

        def stop_and_release() -> None:
            assert slow.began.wait(20)
            time.sleep(0.1)  # the stop comes first
            slow.may_write.set()

        async def go() -> bool:
            async def stop() -> None:
                await asyncio.to_thread(slow.began.wait, 20)
                await world.run.stop()

            releasing = threading.Thread(target=stop_and_release)
            releasing.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(stop())
                running = group.create_task(world.run.go(FakeTracker(), FakeTracker()))
            releasing.join()
            return running.result()

        asyncio.run(asyncio.wait_for(go(), 40))
    steps = list(checkpoint_steps(world.folder.checkpoints))
    assert steps[:2] == [0, 3]
    assert world.state["trainer"]["step"] == world.run.step == steps[-1]
    check_balance(world)


def test_a_checkpoint_that_fails_ends_a_run_that_waits_for_its_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "run").start()
    play = Duel.play

    async def waits(self: Duel, t: Table) -> Mapping[str, float]:
        if world.run.step >= 2:
            await asyncio.sleep(3600)
        return await play(self, t)

    async def full(self: Run, write: Any) -> None:
        await asyncio.sleep(0.05)
        if self.step:
            raise CheckpointError("step-000002 cannot be written: No space left on device")
        write()

    monkeypatch.setattr(Duel, "play", waits)
    monkeypatch.setattr(Run, "_on_writer", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        world.go()
