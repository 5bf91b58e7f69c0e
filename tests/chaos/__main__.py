"""Chaos by hand: ``PYTHONPATH=tests uv run python -m chaos --minutes 30 --seed 0``."""

import argparse
import signal
import sys
from pathlib import Path
from typing import get_args

from chaos.story import Event, as_table, chaos
from chaos.world import Engine


def _say(event: Event) -> None:
    step = f"step {event.step}"
    line = f"{step:>10}  {event.name:<30} {event.outcome} {event.seconds:5.1f} s  {event.proof}"
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a program that reports


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, default=Path("/tmp/legos-chaos"))
    parser.add_argument("--only", help="part of the names of the faults", default="")
    parser.add_argument("--engine", choices=get_args(Engine), default="legos")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    events = chaos(
        given.place,
        seed=given.seed,
        minutes=given.minutes,
        engine=given.engine,
        only=given.only,
        seen=_say,
    )
    print(f"\nseed {given.seed}, {len(events)} faults\n\n{as_table(events)}")  # noqa: T201


if __name__ == "__main__":
    main()
