"""``legos runs``: what runs there are, what is in one, and one of its steps computed again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from legos.config.resolve import read_config
from legos.config.toml import read_sources
from legos.errors import AdapterError, CheckpointError, LegosError
from legos.run.checkpoint import checkpoint_at, checkpoint_steps, checkpoints, read_state
from legos.run.find import find_run
from legos.run.folder import RUNS, RunFolder
from legos.track.jsonl import read_metrics
from legos.weights.folder import read_adapter
from legos.wiring.replay import Replayed, StoredStep, replay_steps

__all__ = ["describe_run", "in_brief", "list_runs", "replay_run"]

Value = float | int | None
_BRIEF = ("forked_from", "reward_mean", "eval/optimal_move_rate", "eval/exploitability", "problem")
# Of the run's account, and of the machine's time and memory.
_UNTOLD = ("tokens_", "filtered/", "discarded/", "step_s", "memory/")


def list_runs(parent: Path = RUNS) -> dict[str, dict[str, Any]]:
    """Name of each run in a folder -> what it trains and how far it is."""
    folders = sorted(path.parent for path in parent.glob("*/config.toml"))
    return {path.name: _summary(RunFolder(path)) for path in folders}


def in_brief(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What fits beside each other on a line, of what ``list_runs`` returns."""
    rows = {
        name: {
            "arena": run.get("arena"),
            "model": Path(str(run.get("model", ""))).name,
            "step": f"{run.get('step', '?')}/{run.get('steps', '?')}",
            **{column: run.get(column) for column in _BRIEF},
        }
        for name, run in runs.items()
    }
    told = {c for row in rows.values() for c, value in row.items() if value is not None}
    return {name: {c: v for c, v in row.items() if c in told} for name, row in rows.items()}


def describe_run(run: str) -> dict[str, Any]:
    """What is in a run folder.

    Raises:
        CheckpointError: there is no such run.
        ConfigError: its settings cannot be read.
    """
    folder = find_run(run)
    sources = read_sources(folder.config.read_text(encoding="utf-8"))
    values = read_config(folder.config).model_dump(mode="json")
    changed = {
        name: f"{_at(values, name)} ({source})"
        for name, source in sources.items()
        if source != "default"
    }
    return {
        "folder": str(folder.path),
        **_summary(folder),
        "checkpoints": _numbers(list(checkpoint_steps(folder.checkpoints))),
        "best_checkpoint": _best(folder),
        "adapters": _numbers(folder.adapter_versions),
        "batches": _numbers(folder.batch_steps),
        "size_mib": sum(p.stat().st_size for p in folder.path.rglob("*") if p.is_file()) / 2**20,
        "settings": changed,
    }


def replay_run(run: str, step: int) -> dict[str, Any]:
    """Compute a stored step again, and compare it with what the run recorded.

    It starts from the newest checkpoint before the step and trains the stored samples of every step
    in between. In deterministic mode, on the same device and library, nothing differs.

    Args:
        run: run folder, or its name in runs/.
        step: number of the optimiser step, from 1.

    Returns:
        Where it started, each metric that differs as [recorded, computed], the largest difference,
        and whether the adapter's bytes are the same; ``exact`` where nothing differs.

    Raises:
        CheckpointError: no such run, or it keeps no samples of the step or of one before it.
    """
    folder = find_run(run)
    start, checkpoint = _start(folder, step)
    records = [folder.read_batches(number) for number in range(start + 1, step + 1)]
    try:
        steps = [StoredStep(num_steps=r["num_steps"], batches=r["batches"]) for r in records]
        replayed = replay_steps(read_config(folder.config), checkpoint, steps)
        digest = records[-1]["digest"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"the samples kept in {folder.batches} cannot be read: {error!r}; were they written "
            "by another version?"
        ) from error
    differing = _differing(_recorded(folder, step), replayed.metrics)
    gaps = [abs(b - a) for a, b in differing.values() if a is not None and b is not None]
    same_bytes = replayed.adapter.digest == digest
    return {
        "step": step,
        "from_step": start,
        "samples": sum(len(batch["samples"]) for batch in steps[-1].batches),
        "exact": same_bytes and not differing,
        "largest_metric_difference": max(gaps, default=0.0),
        "metrics_that_differ": differing,
        "adapter_bytes_equal": same_bytes,
        "adapter_recorded": digest,
        "adapter_computed": replayed.adapter.digest,
        "largest_adapter_difference": 0.0 if same_bytes else _distance(folder, replayed),
    }


def _start(folder: RunFolder, step: int) -> tuple[int, Path | None]:
    """The newest whole checkpoint before a step; 0 and none where that is the model itself."""
    if step < 1:
        raise CheckpointError(f"step is {step}; the first step of a run has number 1")
    folder.read_batches(step)  # the plainest reason to refuse comes first
    for number in reversed(checkpoint_steps(folder.checkpoints)):
        if number < step:
            try:
                return number, checkpoint_at(folder.checkpoints, number)
            except CheckpointError:  # damaged: an older one, and more steps
                continue
    if read_config(folder.config).fork_from is not None:
        raise CheckpointError(
            f"{folder.path} is a fork and keeps no checkpoint before step {step}; take a later "
            "step, or keep more of them with --loop.keep-checkpoints"
        )
    return 0, None


def _recorded(folder: RunFolder, step: int) -> Mapping[str, Value]:
    lines = read_metrics(folder.metrics) if folder.metrics.exists() else []
    for line in lines:
        if line.get("step") == step:
            return line
    raise CheckpointError(f"{folder.metrics} has no line of step {step}")


def _differing(
    recorded: Mapping[str, Value], computed: Mapping[str, Value]
) -> dict[str, list[Value]]:
    """Metrics that are not equal to the last bit, as [recorded, computed]."""
    told = {name: value for name, value in computed.items() if not name.startswith(_UNTOLD)}
    finite = {n: v if v is not None and np.isfinite(v) else None for n, v in told.items()}
    pairs = {name: [recorded.get(name), value] for name, value in finite.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _distance(folder: RunFolder, replayed: Replayed) -> float | None:
    """Largest difference of one number of the adapter; None where the run keeps it not."""
    try:
        kept = read_adapter(folder.adapter_folder(f"v{replayed.adapter.version}"))
    except (AdapterError, CheckpointError):
        return None
    computed = {name: np.asarray(array) for name, array in replayed.adapter.arrays.items()}
    return max(float(np.abs(kept.arrays[name] - array).max()) for name, array in computed.items())


def _summary(folder: RunFolder) -> dict[str, Any]:
    try:
        config = read_config(folder.config)
    except LegosError as error:
        return {"problem": f"{error}"}
    metrics, figures = _last(folder.metrics), _last(folder.evaluations)
    told = {
        "arena": config.arena,
        "model": config.model,
        "step": int(metrics.get("step") or figures.get("step") or 0),
        "steps": config.loop.steps,
        "forked_from": config.fork_from,
        "reward_mean": metrics.get("reward_mean"),
    }
    return told | {n: v for n, v in figures.items() if n.startswith("eval/")}


def _last(path: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON objects; empty where there is none."""
    try:
        data = path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        return json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}


def _best(folder: RunFolder) -> int | None:
    """Step of the best evaluation, as the newest checkpoint tells."""
    found = checkpoints(folder.checkpoints)
    best = read_state(found[-1]).get("best") if found else None
    return best[1] if best else None


def _at(values: Mapping[str, Any], name: str) -> object:
    """A value by its dotted name; an option's own name may hold dots."""
    group, _, rest = name.partition(".")
    if not rest or group not in values:
        return values.get(name)
    return _at(values[group], rest) if isinstance(values[group], Mapping) else values[group]


def _numbers(numbers: list[int]) -> str:
    """``0, 5, 10`` or, of many in a row, ``1 to 200``."""
    if len(numbers) > 4 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers)) or "none"
