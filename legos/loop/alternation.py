"""Whether play waits while the trainer computes: whichever gives more samples in a second.

Where one processor generates and trains, each slows the other down: a game that only computes made
10 to 16 % fewer samples on one core with overlap than in turns. Where plays wait (for tools, for a
few long answers), overlap is faster by far. So both ways are tried for a few steps, and the faster
one is kept for about twenty times as many. It changes only where the other way was faster in each
of several comparisons, because a checkpoint makes single steps long, and groups that wait for slow
tools come in bursts.
"""

import logging
import statistics
from collections.abc import Generator
from typing import NamedTuple

__all__ = ["Alternation"]

logger = logging.getLogger(__name__)

FIRST = 10  # steps before the first trial, in which much is done for the first time
WINDOW, WINDOW_S = 6, 2.0  # of one way: at least so many measured steps and seconds
PAIRS = 3  # windows of each way in a trial
KEPT = 40  # steps between two trials / steps of the usual way in a trial
MARGIN = 0.03  # by which the other way must be faster
HOPELESS, SOON = 0.3, 2  # a window ends early after so many steps, if it is slower by so much


class _Step(NamedTuple):
    seconds: float
    samples: int


class Alternation:
    """Chooses from the times of the steps; it begins with overlap."""

    def __init__(self) -> None:
        self._before: float | None = None  # time of the end of the last step, seconds
        self._begin(FIRST)

    def after_step(self, now: float, samples: int, *, waited: bool) -> bool:
        """Take note of a step; returns whether play waits while the next one is computed.

        Args:
            now: time at its end, seconds.
            samples: number of samples that it trained on.
            waited: whether play waited to the end, and not only until the trainer had waited too
                long; overlap is kept for a while then.
        """
        before, self._before = self._before, now
        if self._on and not waited:
            self._begin(KEPT * WINDOW)
        if before is not None and now > before:
            self._course.send(_Step(now - before, samples))
        return self._on

    def _begin(self, first: int) -> None:
        self._on = False
        self._course = self._choose(first)
        next(self._course)

    def _choose(self, first: int) -> Generator[None, _Step]:
        """Try and keep, for ever, from some steps later on; each step is sent to it."""
        yield from _pass(first)
        while True:
            ratios: list[float] = []
            steps = 0
            while len(ratios) < PAIRS and min(ratios, default=2.0) > 1 + MARGIN:
                usual, taken = yield from _window()
                self._on = not self._on
                other, _ = yield from _window(least=usual * (1 - HOPELESS))
                self._on = not self._on
                ratios.append(other / usual)
                steps += taken
            if min(ratios) > 1 + MARGIN:
                self._on = not self._on
                way = "waits while the trainer computes" if self._on else "overlaps training"
                ratio = statistics.median(ratios)
                logger.info("play %s: %.2f times the samples in a second", way, ratio)
            yield from _pass(KEPT * steps)


def _pass(steps: int) -> Generator[None, _Step]:
    """Let so many steps go by."""
    for _ in range(steps):
        yield


def _window(*, least: float = 0.0) -> Generator[None, _Step, tuple[float, int]]:
    """The samples per second, and the number of steps that it took.

    Args:
        least: samples per second; it ends early if the first steps have fewer.
    """
    yield  # this step began in the other way
    steps, seconds, samples = 0, 0.0, 0
    while steps < WINDOW or seconds < WINDOW_S:
        step = yield
        steps, seconds, samples = steps + 1, seconds + step.seconds, samples + step.samples
        if steps >= SOON and samples / seconds < least:
            break
    return samples / seconds, 1 + steps
