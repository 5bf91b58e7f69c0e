"""The curves of `compare_losses.py`, a picture for each game that is readable on light and dark.

    uv run python tests/bench/compare_losses.py losses.jsonl
    uv run --extra plot python tests/bench/plot_losses.py losses.jsonl docs/log

A second or two on any machine. One panel per loss: the mean of its seeds over their range, the
other losses' means in grey, the goal dashed. `--by engines` does so for `compare_engines.py`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

GREY, COLOUR = "#808080", "#2f81d8"  # about as far from white as from black
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "legos",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
FILES = {"loss": "losses", "engines": "engines"}  # field -> beginning of the pictures' names
GAMES = {"nim": ("share of optimal moves", 0.95, 1.0), "kuhn": ("exploitability", 0.05, 0.5)}


def draw(game: str, curves: dict[str, np.ndarray], picture: Path) -> None:
    """Draw every loss's curves: seeds x evaluations x (step, figure)."""
    label, goal, top = GAMES[game]
    figure, axes = plt.subplots(
        1, len(curves), figsize=(2.2 * len(curves) + 0.4, 2.2), sharey=True, squeeze=False
    )
    for axis, (loss, shown) in zip(axes[0], curves.items(), strict=True):
        for other in curves.values():
            axis.plot(*other.mean(0).T, color=GREY, linewidth=0.7, alpha=0.5)
        axis.axhline(goal, color=GREY, linewidth=0.8, linestyle="--")
        steps, values = shown[0, :, 0], shown[:, :, 1]
        axis.fill_between(steps, values.min(0), values.max(0), color=COLOUR, alpha=0.3, linewidth=0)
        axis.plot(steps, values.mean(0), color=COLOUR, linewidth=1.6)
        axis.set(title=loss, xlabel="optimiser steps", xlim=(0, steps[-1]), ylim=(0, top * 1.03))
    axes[0][0].set_ylabel(f"{game}: {label}")
    figure.tight_layout(w_pad=1.5)
    figure.savefig(picture, transparent=True, metadata={"Date": None})
    plt.close(figure)
    print(f"wrote {picture}")


def main(file: Path, folder: Path, by: str) -> None:
    """Draw the file's games into the folder, one panel for each value of a field."""
    with file.open() as lines:
        rows = [json.loads(line) for line in lines]
    for game in dict.fromkeys(row["game"] for row in rows):
        mine = [row for row in rows if row["game"] == game]
        curves = {
            name: np.array([row["curve"] for row in mine if row[by] == name])
            for name in dict.fromkeys(row[by] for row in mine)
        }
        with mpl.rc_context(STYLE):
            draw(game, curves, folder / f"{FILES[by]}_{game}.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", choices=tuple(FILES), default="loss", help="field of each panel")
    arguments = parser.parse_args()
    main(arguments.file, arguments.folder, arguments.by)
