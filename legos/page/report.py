"""What a report of runs shows, as JSON values: figures, curves, plays, settings, commands."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from time import time
from typing import Any

import msgspec

from legos.config.command import train_command
from legos.errors import CheckpointError
from legos.installed import own_version
from legos.page.curves import chosen_names, config_diff, metric_names, series
from legos.page.overview import row_of
from legos.page.run_view import RunView
from legos.page.samples import sample_plays, shortened
from legos.run.key_figures import before_and_after, key_figures

_MOST_METRICS = 24
_POINTS = 2400  # of the curves of a metric, all runs together
_MOST_BYTES = 1_300_000  # of all values
_MOST_CHARACTERS = (20_000, 4_000, 1_000, 200, 40)  # of a text of a play; the first that fits


def report_values(runs: Sequence[RunView]) -> dict[str, Any]:
    """Everything that a report shows, at most 1.3 MB of it.

    What a run lacks, or what of it cannot be read, is said in its ``missing``.

    Args:
        runs: the runs, in their order.
    """
    rows = [_run(run) for run in runs]
    names = chosen_names(metric_names(runs))[:_MOST_METRICS]
    values = {
        "made_at": time(),
        "version": own_version(),
        "runs": rows,
        "names": names,
        "series": series(runs, names, "step", most=max(40, _POINTS // len(runs))),
        "evaluations": _evaluations(runs, rows),
        "settings": {
            "runs": [run.name for run in runs],
            "rows": config_diff(runs, all_chosen=True),
        },
    }
    plays = {run.name: list(_plays(run, row)) for run, row in zip(runs, rows, strict=True)}
    for most in _MOST_CHARACTERS:
        values["plays"] = {
            name: [{**each, "play": shortened(each["play"], most)} for each in listed]
            for name, listed in plays.items()
        }
        if len(msgspec.json.encode(values, enc_hook=str)) <= _MOST_BYTES:
            return values
    for row in rows:
        if plays[row["name"]]:
            row["missing"].append("its plays do not fit into the file; `legos view` shows them")
    return values | {"plays": {}}


def _run(run: RunView) -> dict[str, Any]:
    """How a run stands, what of it is missing, and the commands that repeat it."""
    row = row_of(run)
    with run.lock:
        folder = run.folder.path
        commands = [["legos", "eval", str(folder)], ["legos", "train", "--resume", str(folder)]]
        if run.settings:
            commands.insert(0, train_command(run.settings, run.sources))
        return {
            **row,
            "missing": [*run.problems, *_lacks(run, row)],
            "history": run.alarms.listed(),
            "commands": [shlex.join(["uv", "run", *words]) for words in commands],
            "config": run.config_text,
        }


def _lacks(run: RunView, row: Mapping[str, Any]) -> Iterator[str]:
    """What a run has not done, in sentences."""
    if not run.metrics.num_steps:
        yield "the run has no steps yet"
    if not run.evaluations.num_steps:
        yield "the run was not evaluated"
    elif run.evaluations.newest["step"] != row["step"]:
        yield f"the newest evaluation is of step {run.evaluations.newest['step']}"
    if row["state"] == "running":
        yield f"the run is going on; this is what it had written at step {row['step']}"


def _plays(run: RunView, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Sample plays; what cannot be read of them is added to what the run lacks."""
    try:
        found = sample_plays(run)
    except CheckpointError as error:
        row["missing"].append(str(error))
        return
    if damaged := run.plays.damaged:
        row["missing"].append(f"episodes.jsonl: {len(damaged)} damaged lines are left out")
    if not found:
        row["missing"].append("no play of the run is stored")
    yield from found


def _evaluations(runs: Sequence[RunView], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the first and the last evaluation, as [mean, lowest, highest] over seeds."""
    families: dict[str, list[RunView]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.evaluations.num_steps:
            families.setdefault(row.get("family", run.name), []).append(run)
    columns: list[dict[str, Any]] = []
    for members in families.values():
        tables = [before_and_after(run.evaluations) for run in members]
        names = dict.fromkeys(name for table in tables for name in table)
        figures = {
            name: [
                _over_seeds([table[name][at] for table in tables if name in table]) for at in (0, 1)
            ]
            for name in names
        }
        steps = [sorted({run.evaluations["step"][at].item() for run in members}) for at in (0, -1)]
        columns.append({"runs": [run.name for run in members], "steps": steps, "figures": figures})
    better = {k: v for run in runs for k, v in key_figures(run.evaluations).items()}
    return {"columns": columns, "larger_is_better": better}


def _over_seeds(values: Sequence[float | None]) -> list[float] | None:
    found = [value for value in values if value is not None]
    return [fmean(found), min(found), max(found)] if found else None
