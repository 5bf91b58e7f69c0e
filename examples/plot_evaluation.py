"""A run's evaluations as a plot, beside the reference numbers of its game.

    uv run legos train --out runs/nim
    uv run --extra plot python examples/plot_evaluation.py runs/nim nim.png

A second or two on any machine. Several runs may be given; the last argument is the picture.
`--figure vs_optimal_win` draws a figure of one's choice; it may be repeated.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

FIGURES = ("optimal_move_rate", "exploitability", "illegal_probability", "vs_random_win")


def read(run: Path) -> list[dict[str, float]]:
    """One object per evaluation, in order."""
    with (run / "evaluations.jsonl").open() as file:
        return [json.loads(line) for line in file]


def main(runs: list[Path], picture: Path, figures: Sequence[str] = FIGURES) -> None:
    """Draw every figure that the runs' arena defines, one panel each."""
    curves = {run: read(run) for run in runs}
    shown = [
        name
        for name in figures
        if any(row.get(f"eval/{name}") is not None for rows in curves.values() for row in rows)
    ]
    figure, axes = plt.subplots(
        1, len(shown), figsize=(4 * len(shown), 3), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], shown, strict=True):
        for run, rows in curves.items():
            axis.plot(
                [row["step"] for row in rows],
                [row.get(f"eval/{name}") for row in rows],
                label=run.name,
            )
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("optimiser steps")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.savefig(picture, dpi=120)
    print(f"wrote {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--figure", action="append", help="name of a figure, without eval/")
    arguments = parser.parse_args()
    main(arguments.runs, arguments.picture, arguments.figure or FIGURES)
