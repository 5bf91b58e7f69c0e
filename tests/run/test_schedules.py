"""Seeded schedules of a run on a virtual clock: whatever happens, it keeps its promises.

    uv run python tests/run/test_schedules.py 100000

plays as many on all cores, the first 25 of which the slow tests play and the first 10,000 the
nightly ones, and prints the seeds that failed.
"""

import argparse
import gc
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from schedules import STOP_S, play_schedule, seconds_to_stop
from slow_parts import DEVICE_S

SCHEDULES, STOPS, PART = 10_000, 1000, 250  # PART: of the schedules, or of the stops, in a test
OFTEN = 25  # schedules, or stops, of the slow tests
SHARED_MEMORY = Path("/dev/shm")  # on Linux a file system without a disk, 5 times as fast


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    """Leave everything that other tests have made out of the garbage collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the folders of runs are."""
    return fast_folder() or tmp_path


def fast_folder() -> Path | None:
    """A folder of a file system in memory; None: this machine has none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def totals(seeds: range, place: Path | None, **options: int) -> Counter[str]:
    """Play schedules; the sums of their accounts."""
    found: Counter[str] = Counter()
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=place, prefix="legos-schedule-") as folder:
            found.update(play_schedule(seed, Path(folder), **options)._asdict())
    return found


def parts(number: int) -> list[Any]:
    """First seeds and numbers: slow tests play a few, nightly tests all of them."""
    every = range(0, number, PART)
    return [
        pytest.param(0, OFTEN, marks=pytest.mark.slow),
        *(pytest.param(first, PART, marks=pytest.mark.nightly) for first in every),
    ]


@pytest.mark.parametrize(("first", "count"), parts(SCHEDULES))
def test_every_schedule_keeps_the_promises(first: int, count: int, place: Path) -> None:
    found = totals(range(first, first + count), place)
    assert found["sessions"] > 2 * count  # the injector hits what it means to hit
    assert min(found["stops"], found["kills"], found["errors"]) > count // 4
    assert found["failed_plays"] > count


@pytest.mark.parametrize(("first", "count"), parts(STOPS))
def test_a_thousand_random_stops_end_in_two_seconds(first: int, count: int, place: Path) -> None:
    """Two seconds include the calls that run: a pass, a publication and the last checkpoint."""
    found: list[float] = []
    seed = 2 * first
    while len(found) < count:
        with tempfile.TemporaryDirectory(dir=place, prefix="legos-schedule-") as folder:
            stopping_s = seconds_to_stop(seed, Path(folder))
        seed += 1
        found += [] if stopping_s is None else [stopping_s]
    assert max(found) <= STOP_S
    assert max(found) > DEVICE_S / 2  # a stop waited for a call
    assert seed < 2 * (first + count)  # most runs were stopped, and had not finished before


@pytest.mark.parametrize(
    ("seed", "samples"),
    [
        (8874, 10),  # an error right after a kill before the first checkpoint
        (905, 4),  # a group too old that arrived while the trainer waited for plays
    ],
)
def test_a_schedule_that_once_failed(seed: int, samples: int, place: Path) -> None:
    assert totals(range(seed, seed + 1), place, samples=samples)["kills"] > 0


def test_a_schedule_is_determined_by_its_seed(place: Path) -> None:
    first, again = (totals(range(3, 5), place) for _ in range(2))
    assert first == again


def outcome(seed: int, place: Path | None) -> Counter[str] | str:
    """The account of a schedule, or how it failed."""
    logging.disable(logging.CRITICAL)
    try:
        return totals(range(seed, seed + 1), place)
    except Exception as error:  # every error is a result here
        return f"seed {seed}: {type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schedules", type=int, nargs="?", default=SCHEDULES)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.schedules)
    found, failed = Counter[str](), 0
    with ProcessPoolExecutor() as processes:
        play = partial(outcome, place=fast_folder())
        for result in processes.map(play, seeds, chunksize=10):
            if isinstance(result, str):
                failed += 1
                print(result, flush=True)  # noqa: T201 - a script's result
            else:
                found.update(result)
    print(f"{len(seeds)} schedules, {failed} failed; {dict(found)}")  # noqa: T201
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
