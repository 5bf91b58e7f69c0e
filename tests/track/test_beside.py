"""A tracker beside the run: neither its errors nor its slowness reach the run."""

import logging
from collections.abc import Mapping, Sequence
from threading import Event, current_thread
from time import monotonic
from typing import Any

import pytest
from made_records import make_episode

from legos.losses.alarms import Alarm
from legos.protocols import Tracker
from legos.records.episode import Episode
from legos.track.beside import TrackerBeside

ALARM = Alarm(level="error", metric="loss", text="too high")


class Slow(Tracker):
    """Records what it gets in its thread; waits for ``go_on``, and fails in one step."""

    def __init__(self, *, fails_in: int = -1) -> None:
        self.got: list[Any] = []
        self.go_on = Event()
        self.thread = ""
        self.fails_in = fails_in

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        assert self.go_on.wait(60)
        if step == self.fails_in:
            raise RuntimeError("the service is gone")
        self.got.append((step, dict(metrics)))
        self.thread = current_thread().name

    def plays(self, episodes: Sequence[Episode], **about: Any) -> None:
        self.got.append((len(episodes), about))

    def alert(self, alarm: Alarm, *, step: int) -> None:
        self.got.append((alarm.metric, step))

    def close(self) -> None:
        assert self.go_on.wait(60)
        self.got.append("closed")


def test_calls_return_at_once_and_come_in_their_order() -> None:
    slow = Slow()
    beside = TrackerBeside(slow, "service")
    beside.log({"loss": 1.0}, step=1)
    beside.plays([make_episode({"only": 1.0})], step=1, evaluation=True)
    beside.alert(ALARM, step=2)
    assert slow.got == []
    slow.go_on.set()
    beside.close()
    about = {"step": 1, "evaluation": True}
    assert slow.got == [(1, {"loss": 1.0}), (1, about), ("loss", 2), "closed"]
    assert slow.thread == "track service"


def test_an_error_is_logged_once_and_costs_one_call(caplog: pytest.LogCaptureFixture) -> None:
    failing = Slow(fails_in=2)
    failing.go_on.set()
    beside = TrackerBeside(failing, "service", close_s=60)
    for step in range(1, 5):
        beside.log({}, step=step)
    beside.close()
    assert failing.got == [(1, {}), (3, {}), (4, {}), "closed"]
    [record] = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.message == (
        "service lacks a part of the run, which goes on: RuntimeError: the service is gone"
    )


def test_one_that_failed_while_calls_waited_ends_at_once() -> None:
    failing = Slow(fails_in=1)
    beside = TrackerBeside(failing, "service", waiting=2, close_s=60)
    for step in range(1, 9):
        beside.log({}, step=step)
    failing.go_on.set()
    started = monotonic()
    beside.close()
    assert monotonic() - started < 30


def test_one_that_hangs_holds_few_plays_but_all_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = Slow()
    beside = TrackerBeside(hanging, "service", close_s=60)
    for step in range(100):
        beside.plays([make_episode({"only": 1.0})], step=step, evaluation=False)
        beside.log({}, step=step)
    hanging.go_on.set()
    beside.close()
    assert [step for step, about in hanging.got[:-1] if about == {}] == [*range(100)]
    assert 0 < sum(about != {} for _, about in hanging.got[:-1]) < 30
    assert "50 calls wait for it, so it gets no plays" in caplog.text


def test_one_that_hangs_keeps_neither_the_run_nor_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging, killed = Slow(), Event()
    beside = TrackerBeside(hanging, "service", waiting=3, close_s=1.0, kill=killed.set)
    for step in range(1, 9):
        beside.log({}, step=step)
    beside.close()
    assert killed.is_set()
    assert [r.message for r in caplog.records] == [
        "service lacks a part of the run, which goes on: 3 calls wait for it"
    ]
    hanging.go_on.set()
