"""A run on battery pauses between steps, goes on by itself, and can be stopped meanwhile."""

import asyncio
import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_world import World, check_balance

from legos import mac
from legos.run import power
from legos.run.metrics import read_steps
from legos.track.jsonl import JsonlTracker


@pytest.fixture
def battery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file exists, ``pmset`` reports a battery; the file counts its calls."""
    file, folder = tmp_path / "battery", tmp_path / "tools"
    folder.mkdir()
    pmset = folder / "pmset"
    pmset.write_text(
        f"#!/bin/sh\n[ -e {file} ] && echo call >> {file} && echo \"Now 'Battery Power'\"\nexit 0\n"
    )
    pmset.chmod(0o755)
    file.touch()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(mac, "platform", SimpleNamespace(system=lambda: "Darwin"))
    return file


async def go(world: World, *, beside: "asyncio.Task[None]") -> bool:
    trackers = JsonlTracker(world.folder.metrics), JsonlTracker(world.folder.evaluations)
    try:
        return await asyncio.wait_for(world.run.go(*trackers), timeout=60)
    finally:
        for tracker in trackers:
            tracker.close()
        await beside


def wait_for_pause(battery: Path) -> None:
    while battery.read_text().count("call") < 2:
        time.sleep(0.01)


def test_a_run_waits_for_mains_power_and_goes_on_by_itself(
    battery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(power, "CHECK_S", 0.01)
    world = World(tmp_path / "run", pause_on_battery=True).start()

    async def connect() -> None:
        await asyncio.to_thread(wait_for_pause, battery)
        assert world.run.step == 1
        await asyncio.to_thread(battery.unlink)

    async def both() -> bool:
        return await go(world, beside=asyncio.create_task(connect()))

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(both())
    assert [line["step"] for line in read_steps(world.folder.metrics)] == [1, 2, 3, 4, 5, 6]
    assert [record.message for record in caplog.records if record.name == power.__name__] == [
        "on battery: training pauses until the Mac is connected to power",
        "connected to power: training goes on",
    ]
    check_balance(world)


def test_a_stop_ends_the_pause(battery: Path, tmp_path: Path) -> None:
    world = World(tmp_path / "run", pause_on_battery=True).start()

    async def stop() -> None:
        await asyncio.to_thread(wait_for_pause, battery)
        await world.run.stop()

    async def both() -> bool:
        return await go(world, beside=asyncio.create_task(stop()))

    assert not asyncio.run(both())
    assert world.run.step == 1
    assert World(tmp_path / "run").resume().run.step == 1


def test_a_run_that_was_not_asked_to_pause_goes_on(battery: Path, tmp_path: Path) -> None:
    assert World(tmp_path / "run").start().go()
    assert battery.read_text() == ""
