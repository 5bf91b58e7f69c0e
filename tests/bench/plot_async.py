"""Timelines, staleness and rewards of `tests/bench/async.py`, with overlap and in turns.

    uv run python tests/bench/async.py --json > async.json
    uv run --extra plot python tests/bench/plot_async.py async.json async.svg

A second on any machine. For each kind of plays: a line per play, with the trainer's steps in colour
below, and below these the engine, darker where it was busier; the share of samples of each age in
optimiser steps; and the mean reward after equal numbers of samples.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

GREY, COLOURS = "#808080", {"async": "#2f81d8", "sync": "#d8862f"}
STYLE: dict[Any, Any] = {"font.size": 8, "text.color": GREY, "axes.edgecolor": GREY}
STYLE |= dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), GREY)


def timeline(axis: Any, run: dict[str, Any], mode: str, until: float) -> None:
    """A line for each play; below them when the engine and the trainer computed."""
    for row, (start, end) in enumerate(run["timeline"]["plays"]):
        axis.plot((start, end), (row, row), color=GREY, linewidth=0.8)
    bars = [(start, end - start) for start, end in run["timeline"]["trainer"]]
    axis.broken_barh(bars, (-12, 9), color=COLOURS[mode])
    for start, end, share in run["timeline"]["engine"]:
        axis.broken_barh([(start, end - start)], (-24, 9), color=GREY, alpha=share, linewidth=0)
    busy = f"engine {run['engine_busy_share']:.0%}, trainer {run['trainer_busy_share']:.0%} busy"
    speed = f"{run['samples_per_s']:.0f} samples/s, {run['generations_per_s']:.0f} answers/s"
    axis.set(title=f"{mode}: {speed}\n{busy}", xlim=(0, until), xlabel="seconds", yticks=[])


def main(file: Path, picture: Path) -> None:
    """Draw the runs of the file."""
    runs = json.loads(file.read_text())["runs"]
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(len(runs), 4, figsize=(13, 2.6 * len(runs)), squeeze=False)
    for row, (kind, modes) in zip(axes, runs.items(), strict=True):
        ends = [end for run in modes.values() for _, end in run["timeline"]["plays"]]
        for axis, (mode, run) in zip(row, modes.items(), strict=False):
            timeline(axis, run, mode, max(ends))
            ages = run["staleness"]
            shift = 0.2 if mode == "async" else -0.2
            where = [int(age) + shift for age in ages]
            row[2].bar(where, list(ages.values()), 0.4, color=COLOURS[mode], label=mode)
            row[3].plot(run["reward_by_step"], color=COLOURS[mode], label=mode)
        row[0].set_ylabel(f"{kind}: engine, trainer, plays")
        row[2].set(xlabel="age of a sample, steps", ylabel="share of samples")
        row[3].set(xlabel="optimiser steps", ylabel="mean reward")
        row[3].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(picture, transparent=True)
    print(f"wrote {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    main(given.file, given.picture)
