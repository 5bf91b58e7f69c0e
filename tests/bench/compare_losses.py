"""The policy losses on both games with known answers: same steps and plays, three seeds each.

    uv run python tests/bench/compare_losses.py losses.jsonl

A minute or two a run on two CPU cores, half an hour to an hour in all. A run adds a line to the
file when it ends, and is not repeated while that line stands; plot_losses.py draws the curves.
"""

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

GAMES = {"nim": ("optimal_move_rate", 0.95), "kuhn": ("exploitability", 0.05)}
LOSSES = ("ppo", "cispo", "dppo_tv", "gspo")
CHANGED = {  # from what the game recommends for all; docs/log/losses_compared.md tells why
    "nim": {"cispo": "ema-kl-coef 0.2", "dppo_tv": "clip-range 0.05", "gspo": "clip-range 0.2"},
    "kuhn": {"gspo": "clip-range 0.2"},
}
COUNTS = ("clipped", "moves", "seconds")


def train(game: str, options: str) -> dict:
    """What one run of ``legos train`` comes to."""
    with TemporaryDirectory() as out:
        command = (sys.executable, "-m", "legos", "train", *options.split(), "--out", f"{out}/run")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        texts = (Path(out, f"run/{name}.jsonl").read_text() for name in ("evaluations", "metrics"))
        evaluations, lines = ([*map(json.loads, text.split("\n")[:-1])] for text in texts)
    steps = [line for line in lines if "loss" in line]  # others are of evaluations alone
    return {
        "curve": [(each["step"], round(each[f"eval/{GAMES[game][0]}"], 5)) for each in evaluations],
        "clipped": round(mean(step["clip_fraction"] for step in steps), 5),
        "moves": steps[-1]["tokens_trained"],
        "seconds": round(sum(step["loop/seconds_per_step"] for step in steps)),
    }


def summary(game: str, runs: list[dict]) -> str:
    """The cells of a loss's row."""
    goal, curves = GAMES[game][1], [run["curve"] for run in runs]
    ends = ", ".join(f"{curve[-1][1]:.4f}" for curve in curves)
    late = mean(value for curve in curves for step, value in curve if step > curve[-1][0] * 2 / 3)
    there = [[step for step, v in curve if (v >= goal) == (game == "nim")] for curve in curves]
    first = ", ".join(str(steps[0]) if steps else "never" for steps in there)
    clipped, moves, seconds = (mean(run[name] for run in runs) for name in COUNTS)
    return f"{ends} | {late:.4f} | {first} | {clipped:.2%} | {moves:,.0f} | {seconds:.0f}"


def main(given: argparse.Namespace) -> None:
    """Run what is missing in the file, then print a table for each game."""
    lines = given.file.read_text().split("\n")[:-1] if given.file.exists() else []
    done = {row["options"]: row for row in map(json.loads, lines)}
    runs = {pair: [] for pair in product(given.games, given.losses)}
    for seed, (game, loss) in product(given.seeds, runs):
        options = f"--arena {game} --training.loss {loss} --seed {seed} {given.more}".strip()
        if loss in CHANGED[game]:
            options += f" --training.{CHANGED[game][loss]}"
        if options not in done:
            done[options] = {"game": game, "loss": loss, "options": options, **train(game, options)}
            with given.file.open("a") as file:
                file.write(json.dumps(done[options]) + "\n")
        runs[game, loss].append(done[options])
    for game in given.games:
        titles = (game, "{} at the end", "last third", "{} at step", *COUNTS)
        print(f"\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|".format(*GAMES[game]))
        for loss in given.losses:
            print(f"| {loss} | {summary(game, runs[game, loss])} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--more", default="", help="options of every `legos train`, in one string")
    for name, default in (("--games", GAMES), ("--losses", LOSSES), ("--seeds", "012")):
        parser.add_argument(name, nargs="+", default=list(default))
    main(parser.parse_args())
