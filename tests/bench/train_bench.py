"""Random models with LoRA whose optimiser steps are measured, and trainers in other processes."""

import json
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blas import with_blas
from model_files import ModelShape, random_weights, write_model
from vocabulary import TOKENS

from legos.bench.step_bench import Cost, StepBench
from legos.errors import TrainerError
from legos.wiring.device import Split, device_checks
from legos.wiring.model import load_model

__all__ = ["TrainerProcess", "program", "random_rows", "train_bench"]


def train_bench(
    folder: Path, shape: ModelShape | None = None, *, device: str = "mlx", **settings: Any
) -> StepBench:
    """Load a random model, on the calling thread.

    Args:
        folder: folder of the model; written if it does not exist.
        shape: sizes of a model that does not exist.
        device: name of the device.
        settings: settings of ``BackendConfig``.
    """
    if shape is not None and not folder.exists():
        write_model(folder, shape, random_weights(shape, np.random.default_rng(0)))
    model = load_model(folder, inline=True, device=device)
    if device == "mlx":
        return StepBench(model, device_checks(model), **settings)
    from bench.torch_bare import TorchBaseline

    return StepBench(model, TorchBaseline(model), **settings)


def random_rows(count: int, low: int, high: int, *, prompt: float) -> list[Split]:
    """Unrelated rows of ``low`` to ``high`` tokens; a share of each is the prompt."""
    rng = random.Random(0)
    rows: list[Split] = []
    for _ in range(count):
        length = rng.randint(low, high)
        tokens = tuple(rng.randrange(1, len(TOKENS)) for _ in range(length))
        rows.append((tokens, int(length * prompt)))
    return rows


def program(name: str, *arguments: object, python: Path) -> Sequence[str]:
    """Command line of a program of ``bench.programs``.

    It prints its name and then, for every line that it reads, what its step cost.

    Args:
        name: name of its file.
        arguments: its arguments.
        python: the Python that runs it.
    """
    file = Path(__file__).parent / "programs" / f"{name}.py"
    return [str(python), str(file), *map(str, arguments)]


class TrainerProcess:
    """A trainer in a separate process, usually of another project.

    Attributes:
        name: name of the project.
    """

    def __init__(self, command: Sequence[str], threads: int) -> None:
        """Start the process and wait until it has loaded the model.

        Args:
            command: its command line; a program of ``bench.programs``.
            threads: number of its BLAS threads.

        Raises:
            TrainerError: it ends, because no trainer is installed there or it cannot be run.
        """
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **with_blas(os.environ),
                "OPENBLAS_NUM_THREADS": f"{threads}",
                "OMP_NUM_THREADS": f"{threads}",
            },
        )
        self.name: str = command[0]
        self.name = self._answer()

    def step(self, rows: Sequence[Split], count: int) -> Cost:
        """One optimiser step, ``count`` rows at a time.

        Raises:
            TrainerError: the process ends.
        """
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.write(json.dumps({"rows": rows, "count": count}) + "\n")
        self._process.stdin.flush()
        return Cost(**self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None, "a pipe"
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self.close()
            raise TrainerError(
                f"{self.name} ended with code {code} (its message is above); "
                "--peer needs the Python of an environment with mlx-lm-lora, mlx-tune or "
                "inductive-mlxrl for train.py, and with peft for cuda.py"
            )
        return json.loads(line)
