"""Optimiser steps of the torch device, as a program whose process has no other memory.

    python -m legos.bench.torch_steps MODEL TOKENS

loads a model and answers lines as the programs of ``legos.wiring.device.trainer_command`` do, with
passes of so many tokens.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from legos.bench.train_bench import TrainBench

__all__ = ["steps_command"]


def steps_command(folder: Path, tokens: int) -> Sequence[str]:
    """The command line of this program."""
    return [sys.executable, "-m", "legos.bench.torch_steps", str(folder), str(tokens)]


def _main(folder: str, tokens: str) -> None:
    bench = TrainBench(Path(folder), device="torch", micro_batch_tokens=int(tokens))
    _answer("legos")
    for line in sys.stdin:
        rows = [(tuple(ids), prompt) for ids, prompt in json.loads(line)["rows"]]
        _answer(asdict(bench.step(rows)))


def _answer(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
