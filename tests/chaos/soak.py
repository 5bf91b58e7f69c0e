"""Hours without a fault: ``PYTHONPATH=tests uv run python -m chaos.soak --minutes 120``.

Two runs go on at the same time: one on two servers, whose policies are swapped after each step,
and one of two arenas on the engine in its own process. Memory, open files and threads of all four
processes are read from /proc and must stay what they are.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.world import World, steps_of

__all__ = ["Sample", "as_table", "grown", "soak"]

GROWTH = 1.05  # of memory, from the second quarter of the time to the last
MIX = (
    *("--mix", "nim=0.5", "--mix", "kuhn=0.5", "--steps", "1000000", "--out", "mixed"),
    *("--loop.checkpoint-every", "20"),
)


class Sample(NamedTuple):
    """What one process holds at one time."""

    process: str
    minutes: float  # since the first sample
    memory_mb: float  # resident
    files: int
    threads: int
    steps: int  # optimiser steps that its run has made


def soak(place: Path, *, minutes: float, every_s: float = 30.0) -> list[Sample]:
    """Train for some time, and note what the processes hold.

    Args:
        place: a folder that is emptied; it keeps the runs, the logs and ``samples.jsonl``.
        minutes: length, from the first steps of both runs.
        every_s: seconds between two samples of each process.

    Raises:
        AssertionError: a process ended, or a run did not end well when it was told to.
    """
    samples: list[Sample] = []
    with World.running(place) as world, (place / "mixed.log").open("wb") as log:
        command = [sys.executable, "-m", "legos", "train", *MIX]
        mixed = subprocess.Popen(command, cwd=place, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for_steps(place / "mixed", mixed)
            processes = {"run on two servers": world.trainer, "run of two arenas": mixed}
            processes |= {f"server {i}": server for i, server in enumerate(world.servers.processes)}
            began = time.monotonic()
            while time.monotonic() - began < 60 * minutes:
                for name, process in processes.items():
                    assert process.poll() is None, f"{name} ended with {process.returncode}"
                    run = place / ("mixed" if process is mixed else "run")
                    now = (time.monotonic() - began) / 60
                    samples.append(Sample(name, now, *_held(process.pid), steps_of(run)))
                    with (place / "samples.jsonl").open("a") as file:
                        file.write(json.dumps(samples[-1]._asdict()) + "\n")
                time.sleep(every_s)
            mixed.terminate()
            assert mixed.wait(30) == 143, f"exit code {mixed.returncode}"
        finally:
            mixed.kill()
            mixed.wait()
        world.trainer.terminate()
        assert world.trainer.wait(30) == 143, world.told()[-2000:]
        world.check_folder()
    return samples


def as_table(samples: Sequence[Sample]) -> str:
    """Medians of the second and the last quarter for each process, as a table in Markdown."""
    lines = [
        "| process | steps | memory, MB: second quarter | last quarter | files | threads |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(sample.process for sample in samples):
        early, late = _quarters(samples, name)
        memory = f"{_memory(early):.0f} | {_memory(late):.0f}"
        held = [
            f"{getattr(early[0], of)} to {getattr(late[-1], of)}" for of in ("files", "threads")
        ]
        lines.append(f"| {name} | {late[-1].steps} | {memory} | {' | '.join(held)} |")
    return "\n".join(lines)


def grown(samples: Sequence[Sample]) -> list[str]:
    """Names of the processes whose memory, files or threads have grown."""
    found: list[str] = []
    for name in dict.fromkeys(sample.process for sample in samples):
        early, late = _quarters(samples, name)
        more = _memory(late) > GROWTH * _memory(early)
        more |= min(s.files for s in late) > max(s.files for s in early)
        more |= min(s.threads for s in late) > max(s.threads for s in early)
        found += [name] if more else []
    return found


def _quarters(samples: Sequence[Sample], name: str) -> tuple[list[Sample], list[Sample]]:
    """The samples of a process in the second and in the last quarter of the time."""
    own = [sample for sample in samples if sample.process == name]
    quarter = max(len(own) // 4, 1)
    return own[quarter : 2 * quarter] or own, own[-quarter:]


def _memory(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.memory_mb for sample in samples)


def _held(pid: int) -> tuple[float, int, int]:
    """Resident memory in MB, open files and threads of a process."""
    facts = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (facts / "status").read_text().splitlines())
    files = len(list((facts / "fd").iterdir()))
    return int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"])


def _wait_for_steps(run: Path, process: subprocess.Popen[bytes], within_s: float = 300.0) -> None:
    deadline = time.monotonic() + within_s
    while steps_of(run) < 2:
        assert process.poll() is None, f"the run ended with {process.returncode}"
        assert time.monotonic() < deadline, f"no two steps within {within_s:g} s"
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.soak")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--every-s", type=float, default=30.0)
    parser.add_argument("--place", type=Path, default=Path("/tmp/legos-soak"))
    given = parser.parse_args()
    samples = soak(given.place, minutes=given.minutes, every_s=given.every_s)
    print(as_table(samples))  # noqa: T201 - a program that reports
    if more := grown(samples):
        sys.exit(f"grown: {', '.join(more)}")


if __name__ == "__main__":
    main()
