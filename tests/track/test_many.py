"""Several trackers as one: all get every step, and all are closed whatever happens."""

from collections.abc import Mapping

import pytest

from legos.protocols import Tracker
from legos.track.many import ManyTrackers


class Recorder(Tracker):
    """Keeps what it gets; fails to close where told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.logged: list[tuple[int, dict[str, float | int | None]]] = []
        self.closed = 0
        self.fails = fails

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise OSError("no room")


def test_every_tracker_gets_every_step() -> None:
    recorders = [Recorder(), Recorder()]
    many = ManyTrackers(recorders)
    many.log({"loss": 1.0}, step=3)
    many.close()
    assert [r.logged for r in recorders] == [[(3, {"loss": 1.0})]] * 2
    assert [r.closed for r in recorders] == [1, 1]


def test_one_that_fails_to_close_does_not_keep_the_others_open() -> None:
    recorders = [Recorder(), Recorder(fails=True), Recorder()]
    with pytest.raises(OSError, match="no room"):
        ManyTrackers(recorders).close()
    assert [r.closed for r in recorders] == [1, 1, 1]
