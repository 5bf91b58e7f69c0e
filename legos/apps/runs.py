"""``legos runs``: list runs and describe one."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from legos.apps.markdown import four_digits
from legos.config.resolve import read_config
from legos.errors import CheckpointError, LegosError
from legos.run.checkpoint import checkpoint_steps
from legos.run.ending import standing
from legos.run.find import best_step, find_run, runs_in
from legos.run.folder import RUNS, RunFolder
from legos.run.key_figures import key_figures
from legos.run.metrics import newest_metrics
from legos.run.reader import RunReader


def list_runs(parent: Path = RUNS) -> dict[str, dict[str, Any]]:
    """Name of each run in a folder -> its state, arena, model, step and newest metrics."""
    return {path.name: _summary(RunFolder(path)) for path in runs_in(parent)}


def in_brief(
    runs: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The columns of a table of runs, without empty ones, from what ``list_runs`` returns.

    Returns:
        The rows by name, and why runs cannot be read, by name.
    """
    problems = {name: run["problem"] for name, run in runs.items() if "problem" in run}
    rows: dict[str, dict[str, Any]] = {
        name: {
            "state": run.get("state", "unreadable"),
            "step": f"{run['step']}/{run['steps']}" if "step" in run else None,
            "reward": None if run.get("reward_mean") is None else f"{run['reward_mean']:+.3f}",
            "evaluated": _evaluated(run),
            "arena": "+".join(map(_last_part, run["arena"].split("+"))) if "arena" in run else None,
            "model": _last_part(run.get("model") or "") or None,
            "forked from": _last_part(run.get("forked_from") or "") or None,
        }
        for name, run in runs.items()
    }
    filled = {c for row in rows.values() for c, value in row.items() if value is not None}
    return {n: {c: v for c, v in row.items() if c in filled} for n, row in rows.items()}, problems


def _evaluated(run: Mapping[str, Any]) -> str | None:
    """The metric of the newest evaluation that says most; of a mix, one for each arena."""
    texts: list[str] = []
    for name in key_figures(name for name, value in run.items() if value is not None):
        start, _, metric = name.rpartition("/")
        arena = start.removeprefix("eval").removeprefix("/")
        words = (arena, metric.removesuffix("_mean").replace("_", " "), four_digits(run[name]))
        texts.append(" ".join(filter(None, words)))
    return ", ".join(texts) or None


def describe_run(run: str) -> dict[str, Any]:
    """The contents of a run folder: metrics, checkpoints, adapters, changed settings.

    Raises:
        CheckpointError: the run is not found.
        ConfigError: its settings cannot be read.
    """
    folder = find_run(run)
    config = RunReader(folder).config
    changed = {
        name: f"{config.values[name]} ({source})"
        for name, source in config.sources.items()
        if source != "default"
    }
    return {
        "folder": str(folder.path),
        **_summary(folder),
        "checkpoints": _numbers(list(checkpoint_steps(folder.checkpoints))),
        "best_checkpoint": _best(folder),
        "adapters": _numbers([*folder.adapter_versions]),
        "size_mib": _size_bytes(folder.path) / 2**20,
        "settings": changed,
    }


def _summary(folder: RunFolder) -> dict[str, Any]:
    try:
        config = read_config(folder.settings)
    except LegosError as error:
        return {"problem": f"{error}"}
    metrics, evaluated = newest_metrics(folder.metrics), newest_metrics(folder.evaluations)
    step, steps = int(metrics.get("step") or evaluated.get("step") or 0), config.loop.steps
    state = standing(folder, done=step >= steps and evaluated.get("step") == step)
    summary = {
        "state": state,
        "arena": config.title,
        "model": config.model,
        "step": step,
        "steps": steps,
        **({"failure": folder.failed_with()} if state == "failed" else {}),
        "forked_from": config.fork_from,
        "reward_mean": metrics.get("reward_mean"),
    }
    return summary | {n: v for n, v in evaluated.items() if n.startswith("eval/")}


def _last_part(name: str) -> str:
    """The class of FILE.py:Class, or the last part of a path."""
    return Path(name).name.rpartition(":")[2]


def _best(folder: RunFolder) -> int | None:
    """Step of the best evaluation, from the newest intact checkpoint."""
    with suppress(CheckpointError):  # there is none
        return best_step(folder)
    return None


def _size_bytes(folder: Path) -> int:
    """Size of the files of a run, which removes some meanwhile if it goes on."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += Path(place, name).stat().st_size
    return size


def _numbers(numbers: list[int]) -> str:
    """``0, 5, 10``, or ``1 to 200`` for more than four consecutive numbers."""
    if len(numbers) > 4 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers)) or "none"
