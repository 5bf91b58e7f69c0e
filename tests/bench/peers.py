"""Whole runs of GRPO on a real chat model, in turn with other trainers.

uv run --group real python tests/bench/peers.py --peer PYTHON --peer PYTHON --json

Every trainer learns sums with SmolLM2-135M-Instruct: 12 questions and 8 answers each of at most 16
tokens a step, LoRA of rank 8 on the last 16 layers, the same learning rate, no KL term.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import itertools
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.command import Compared, Ratio, run
from bench.train_bench import program
from blas import with_blas
from chat_model import write_chat_model
from metric_lines import read_metrics

from legos.arena.registry import find_arena
from legos.config.learning_rate import learning_rates
from legos.errors import ConfigError, TrainerError

__all__ = ["RATIOS", "bench_peers"]

RATIOS: Mapping[str, Ratio] = {
    "samples_per_s_vs_fastest": Ratio("samples a second, against the fastest other trainer", 2),
    "memory_vs_smallest": Ratio(
        "peak memory, against the other trainer with the smallest", 1, at_most=True
    ),
    "minutes_vs_fastest": Ratio(
        "minutes of training to 0.25 of held-out sums right, against the fastest other trainer",
        0.5,
        at_most=True,
    ),
}
PROMPTS, GROUP, MAX_TOKENS = 12, 8, 16
STEPS, QUICK_STEPS = 9, 3
RIGHT, PLAYS = 0.25, 192
ARENA = "sums"
OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class _Run:
    """The steps of one trainer, and where their adapters are."""

    seconds: Sequence[float]  # of each step
    peak_bytes: int
    adapters: Mapping[int, Path]  # step -> adapter folder

    @property
    def samples_per_s(self) -> float:
        """Without the first step, which also makes ready."""
        return PROMPTS * GROUP * (len(self.seconds) - 1) / sum(self.seconds[1:])


def bench_peers(work: Compared) -> Mapping[str, Any]:
    """Whole runs of GRPO on a real chat model, in turn with other trainers."""
    if not work.peers:
        raise ConfigError("name the Python of another trainer: --peer PATH/bin/python")
    steps = work.size(STEPS, QUICK_STEPS)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        model = write_chat_model(root / "float32")
        runs = {"legos": _ours(model, root / "legos", steps)}
        for number, python in enumerate(work.peers):
            name, theirs = _theirs(python, model, root / f"peer-{number}", steps)
            runs[name] = theirs
        figures = {name: _figures(one) for name, one in runs.items()}
        if not work.quick:
            for name, one in runs.items():
                figures[name] |= _learned(one, root / "legos")
    return {"trainers": figures, "ratios": _ratios(figures)}


def _figures(one: _Run) -> dict[str, Any]:
    return {"samples_per_s": one.samples_per_s, "peak_gib": one.peak_bytes / 2**30}


def _ratios(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    ours, *others = figures.values()
    minutes = [each["minutes"] for each in others if each.get("minutes") is not None]
    mine = ours.get("minutes")
    return {
        "samples_per_s_vs_fastest": ours["samples_per_s"]
        / max(each["samples_per_s"] for each in others),
        "memory_vs_smallest": ours["peak_gib"] / min(each["peak_gib"] for each in others),
        "minutes_vs_fastest": mine / min(minutes) if mine is not None and minutes else None,
    }


def _ours(model: Path, out: Path, steps: int) -> _Run:
    options = {
        "--model": model,
        "--arena": ARENA,
        "--out": out,
        "--steps": steps,
        "--play.tasks-per-step": PROMPTS,
        "--play.group-size": GROUP,
        "--play.curriculum": "uniform",
        "--generation.max-tokens": MAX_TOKENS,
        "--loop.checkpoint-every": 1,
        "--loop.keep-checkpoints": steps,
        "--loop.evaluate-every": steps,
        "--loop.evaluation-plays": 1,
    }
    texts = [f"{each}" for pair in options.items() for each in pair]
    _legos("train", *texts)
    found = [one for one in read_metrics(out / "metrics.jsonl") if "step_s" in one]
    return _Run(
        seconds=[one["loop/seconds_per_step"] or 0.0 for one in found],
        peak_bytes=int(max(one["memory/peak_gib"] or 0.0 for one in found) * 2**30),
        adapters={step: out / "adapters" / f"v{step}" for step in range(1, steps + 1)},
    )


def _theirs(python: Path, model: Path, out: Path, steps: int) -> tuple[str, _Run]:
    """Name and run of another trainer, in the Python in which it is installed."""
    arena: Any = find_arena(ARENA)()
    tasks = itertools.islice(arena.tasks(random.Random(0)), PROMPTS * steps)
    rates = learning_rates(model)
    assert rates is not None, "its configuration names its hidden size"
    order = {
        "questions": [(arena.question(task), arena.right(task)) for task in tasks],
        "prompts": PROMPTS,
        "group": GROUP,
        "rows": PROMPTS,
        "max_tokens": MAX_TOKENS,
        "steps": steps,
        "learning_rate": rates.middle,
    }
    done = subprocess.run(
        program("peer_run", model, out, python=python),
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        text=True,
        env=with_blas(OFFLINE),
    )
    if done.returncode:
        raise TrainerError(f"{python} ended with code {done.returncode} (its message is above)")
    name, *found = map(json.loads, done.stdout.splitlines())
    return name, _Run(
        seconds=[one["seconds"] for one in found],
        peak_bytes=max(one["peak_bytes"] for one in found),
        adapters={step: out / f"v{step}" for step in range(1, steps + 1)},
    )


def _learned(one: _Run, run: Path) -> dict[str, Any]:
    """Held-out accuracy by step until it is high enough, and at last; minutes of training to it."""
    right: dict[int, float] = {}
    reached: int | None = None
    for step, adapter in one.adapters.items():
        if reached and step < max(one.adapters):
            continue
        plays = ("--loop.evaluation-plays", f"{PLAYS}")
        text = _legos("eval", str(run), "--adapter", str(adapter), *plays, "--json")
        right[step] = json.loads(text)["reward_part"]["player/correct"]
        if reached is None and right[step] >= RIGHT:
            reached = step
    minutes = None if reached is None else sum(one.seconds[:reached]) / 60
    return {"held_out_right": right, "minutes": minutes}


def _legos(*arguments: str) -> str:
    command = [sys.executable, "-m", "legos", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=OFFLINE)
    if done.returncode:
        raise TrainerError(f"legos {arguments[0]} ended with code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    run(bench_peers, RATIOS)
