"""Seeded schedules of a run on a virtual clock: whatever happens, it keeps its promises.

    uv run python tests/run/test_schedules.py 10000

plays as many, the first 500 of which the slow tests play, and prints the seeds that failed.
"""

import argparse
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from schedules import play_schedule

PARTS, SCHEDULES = 4, 500


def totals(seeds: range, place: Path) -> Counter[str]:
    """Play schedules; the sums of their accounts."""
    found: Counter[str] = Counter()
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            found.update(play_schedule(seed, Path(folder))._asdict())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_schedule_keeps_the_promises(part: int, tmp_path: Path) -> None:
    found = totals(range(part, SCHEDULES, PARTS), tmp_path)
    share = SCHEDULES // PARTS
    assert found["sessions"] > 2 * share  # the injector hits what it means to hit
    assert min(found["stops"], found["kills"], found["errors"]) > share // 4
    assert found["failed_plays"] > share


def test_a_schedule_is_determined_by_its_seed(tmp_path: Path) -> None:
    first, again = (totals(range(3, 5), tmp_path) for _ in range(2))
    assert first == again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schedules", type=int, nargs="?", default=SCHEDULES)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found, failed = Counter[str](), dict[int, Exception]()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(arguments.first, arguments.first + arguments.schedules):
            try:
                found.update(totals(range(seed, seed + 1), Path(place)))
            except (AssertionError, RuntimeError) as error:
                failed[seed] = error
                print(f"seed {seed}: {error}", flush=True)  # noqa: T201 - a script's result
    print(f"{arguments.schedules} schedules, {len(failed)} failed; {dict(found)}")  # noqa: T201


if __name__ == "__main__":
    main()
