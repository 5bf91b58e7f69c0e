"""Curves of runs in one picture: a panel for each figure, a line for each run.

    uv run --extra plot python tests/bench/plot_runs.py docs/log/chat_models.svg \\
      --panel "sums: right" eval/reward_part_player/correct runs/sums-1 runs/sums-2 \\
      --panel "nim: optimal moves" eval/optimal_move_rate runs/nim-1

A figure is a name of `evaluations.jsonl` or of `metrics.jsonl`; those of training, which differ
from step to step, are shown as means of five steps.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from plot_losses import COLOUR, GREY, STYLE  # pyrefly: ignore[missing-import]

MEAN_OF = 5  # steps


def curve(run: Path, figure: str) -> np.ndarray:
    """[N, 2] steps and values of a figure."""
    evaluated = figure.startswith("eval/")
    file = run / ("evaluations.jsonl" if evaluated else "metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = np.array([(row["step"], row[figure]) for row in rows if row.get(figure) is not None])
    if not len(found):
        raise SystemExit(f"{file} has no {figure}")
    if evaluated:
        return found
    values = [found[max(0, end - MEAN_OF) : end, 1].mean() for end in range(1, len(found) + 1)]
    return np.column_stack([found[:, 0], values])


def main(picture: Path, panels: list[list[str]]) -> None:
    """Draw all panels."""
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(1, len(panels), figsize=(2.4 * len(panels), 2.2), squeeze=False)
    for axis, (title, name, *runs) in zip(axes[0], panels, strict=True):
        for run in runs:
            axis.plot(*curve(Path(run), name).T, color=COLOUR, linewidth=1.4, marker=".")
        axis.set_title(title, color=GREY)
        axis.set(xlabel="optimiser steps", xlim=0, ylim=0)
    figure.tight_layout(w_pad=1.5)
    figure.savefig(picture, transparent=True, metadata={"Date": None})
    print(f"wrote {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument(
        "--panel", nargs="+", action="append", required=True, metavar="TITLE, FIGURE, RUNS"
    )
    given = parser.parse_args()
    main(given.picture, given.panel)
