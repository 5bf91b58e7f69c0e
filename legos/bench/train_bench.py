"""Optimiser steps of the kit, and bare updates on the same model, with their time and memory."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from legos.builtin.files import ModelShape, random_weights, write_model
from legos.data.batch import normalisation_weights
from legos.data.step import BackendConfig, Update
from legos.errors import TrainerError
from legos.losses.objective import Objective
from legos.testing.records import make_sample
from legos.wiring.device import Split, trainer_command, training_checks
from legos.wiring.model import apply_lora, load_model

__all__ = ["Cost", "TrainBench", "TrainerProcess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time and memory of one update."""

    seconds: float
    peak_bytes: int  # peak of the memory allocated in addition, bytes


class TrainBench:
    """The kit's step and bare updates on one model, on the calling thread."""

    def __init__(
        self, folder: Path, shape: ModelShape | None = None, *, device: str = "mlx", **settings: Any
    ) -> None:
        """Load a random model and put LoRA on all its layers.

        Args:
            folder: folder of the model; written if it does not exist.
            shape: sizes of a model that does not exist.
            device: name of the device.
            settings: settings of ``BackendConfig``.
        """
        if shape is not None and not folder.exists():
            write_model(folder, shape, random_weights(shape, np.random.default_rng(0)))
        self._folder = folder
        model = load_model(folder, inline=True, device=device)
        apply_lora(model, rank=8, layers=1000, head=False)
        self._backend = model.make_backend(BackendConfig(**settings))
        self._checks = training_checks(model)

    def step(self, rows: Sequence[Split]) -> Cost:
        """One optimiser step, from samples to the new adapter."""
        samples = [
            make_sample(
                tokens, positions=range(prompt, len(tokens)), advantages=1.0 - 2.0 * (number % 2)
            )
            for number, (tokens, prompt) in enumerate(rows)
        ]

        def step() -> None:
            weights = normalisation_weights(samples, "token")
            self._backend.forward_backward(samples, weights, Objective()).result()
            self._backend.optim_step(Update(learning_rate=1e-6)).result()

        return self._measured(step)

    def bare(self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0) -> Cost:
        """One bare update, its padding done before the clock starts."""
        return self._measured(self._checks.bare_update(blocks, pad_to=pad_to))

    @contextmanager
    def other_trainer(self, python: Path, *, threads: int) -> Generator["TrainerProcess"]:
        """Within the block, another trainer runs on the same model.

        Args:
            python: Python of the environment in which it is installed.
            threads: number of its BLAS threads.
        """
        other = TrainerProcess(trainer_command(python, self._folder), threads)
        try:
            yield other
        finally:
            other.close()

    def _measured(self, call: Callable[[], object]) -> Cost:
        """Run a call whose arrays are evaluated when it returns."""
        started = time.perf_counter()
        peak = self._checks.peak_bytes(call)
        return Cost(seconds=time.perf_counter() - started, peak_bytes=peak)


class TrainerProcess:
    """A trainer in a separate process, usually of another project.

    Attributes:
        name: name of the project.
    """

    def __init__(self, command: Sequence[str], threads: int) -> None:
        """Start the process and wait until it has loaded the model.

        Args:
            command: its command line; see ``legos.wiring.device.trainer_command``.
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
                **os.environ,
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
                "inductive-mlxrl for legos bench train, and with peft for legos bench cuda"
            )
        return json.loads(line)
