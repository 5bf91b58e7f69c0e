r"""Four ways to run the two games with known answers: who trains, and who generates.

    uv run legos serve --model builtin --port 8001                       # in one terminal
    vllm serve ... --port 8002     # in another, as docs/serve/vllm.md says
    uv run python tests/bench/compare_engines.py engines.jsonl --own http://127.0.0.1:8001 \
      --vllm http://127.0.0.1:8002

Needs the extra `torch`. A run adds a line to the file when it ends, and is not repeated while that
line stands; `plot_losses.py engines.jsonl docs/log --by engines` draws the curves.
"""

import argparse
import json
from itertools import product
from pathlib import Path

from compare_losses import GAMES, summary, train  # pyrefly: ignore[missing-import]

ENGINES = {  # name -> device of the trainer, and the server that generates
    "mlx + own engine": ("mlx", None),
    "mlx + vllm": ("mlx", "vllm"),
    "torch + vllm": ("torch", "vllm"),
    "torch + own server": ("torch", "own"),
}
PLAYS = "--play.tasks-per-step 64 --training.min-samples-per-step 64"
SIZE = {  # smaller games and fewer plays than the defaults, so that a run takes a few minutes
    "nim": f"{PLAYS} --play.options.largest 7 --loop.steps 450 --loop.evaluate-every 50",
    "kuhn": f"{PLAYS} --loop.steps 240 --loop.evaluate-every 40 --training.learning-rate 5e-3",
}


def main(given: argparse.Namespace) -> None:
    """Run what is missing in the file, then print a table for each game."""
    lines = given.file.read_text().split("\n")[:-1] if given.file.exists() else []
    done = {row["options"]: row for row in map(json.loads, lines)}
    runs = {pair: [] for pair in product(given.games, ENGINES)}
    for seed, (game, name) in product(given.seeds, runs):
        device, server = ENGINES[name]
        options = (
            f"--arena {game} --device {device} --seed {seed} {SIZE[game]} {given.more}".strip()
        )
        key = f"{name}: {options}"
        if key not in done and not given.tell:
            if server is not None:
                options += f" --server {getattr(given, server)}"
            done[key] = {"game": game, "engines": name, "options": key, **train(game, options)}
            with given.file.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
        runs[game, name] += [done[key]] if key in done else []
    for game in given.games:
        titles = (game, "{} at the end", "last third", "{} at step", "clipped", "moves", "seconds")
        print(f"\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|".format(*GAMES[game]))
        for name in ENGINES:
            row = runs[game, name]
            print(f"| {name} | {summary(game, row) if row else 'not run | | | | | '} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--own", default="http://127.0.0.1:8001", help="address of `legos serve`")
    parser.add_argument("--vllm", default="http://127.0.0.1:8002", help="address of a vLLM server")
    parser.add_argument("--more", default="", help="options of every `legos train`, in one string")
    parser.add_argument("--tell", action="store_true", help="print the tables of the runs so far")
    for name, default in (("--games", GAMES), ("--seeds", "012")):
        parser.add_argument(name, nargs="+", default=list(default))
    main(parser.parse_args())
