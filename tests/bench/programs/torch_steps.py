"""Optimiser steps of the torch device, as a program whose process has no other memory.

    python torch_steps.py MODEL TOKENS

loads a model and answers lines as ``peer_trainer`` does, with passes of so many tokens.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # the folder of the package bench

from bench.train_bench import train_bench

__all__: list[str] = []


def _main(folder: str, tokens: str) -> None:
    bench = train_bench(Path(folder), device="torch", micro_batch_tokens=int(tokens))
    _answer("legos")
    for line in sys.stdin:
        rows = [(tuple(ids), prompt) for ids, prompt in json.loads(line)["rows"]]
        _answer(asdict(bench.step(rows)))


def _answer(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
