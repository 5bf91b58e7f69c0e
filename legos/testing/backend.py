"""A backend without gradients, a publisher without engines, a tracker without files."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from legos.data.batch import Batch
from legos.errors import CheckpointError
from legos.losses.objective import Objective, StepResult
from legos.weights.adapter import Adapter, AdapterInfo, LoraShape

__all__ = ["FakeBackend", "FakePublisher", "FakeTracker"]

SHAPE = LoraShape(rank=1, scale=1.0, num_layers=1, modules=("mlp",))
STATE_FILE = "fake_backend.json"


class FakeBackend:
    """Counts steps; its adapter holds the number of steps in every place.

    Attributes:
        steps: (batches, objective, learning rate) of every step asked for.
        left_out: reasons not to apply the next steps, first come first used; None applies one.
        held: futures of steps that wait for ``release``, where ``hold`` is set.
        trail: digest of all that it was trained on, in order; kept in what ``save`` writes.
    """

    def __init__(self, *, hold: bool = False) -> None:
        """Make a backend; with ``hold`` a step ends only when ``release`` is called."""
        self._version = 0
        self._hold = hold
        self.steps: list[tuple[Sequence[Batch], Objective, float]] = []
        self.left_out: list[str | None] = []
        self.held: list[Future[StepResult]] = []
        self.trail = ""

    @property
    def version(self) -> int:
        """Steps applied so far."""
        return self._version

    def step(
        self, batches: Sequence[Batch], objective: Objective, *, learning_rate: float
    ) -> "Future[StepResult]":
        """Take note of a step."""
        self.steps.append((batches, objective, learning_rate))
        seen = [
            [array.tolist() for array in (b.input_ids, b.target, b.advantage, b.version)]
            for b in batches
        ]
        whole = f"{self.trail} {seen} {objective} {learning_rate}"
        self.trail = hashlib.sha256(whole.encode()).hexdigest()
        future: Future[StepResult] = Future()
        self.held.append(future)
        if not self._hold:
            self.release()
        return future

    def release(self, error: Exception | None = None) -> None:
        """End the steps that are held, with an error if one is given."""
        held, self.held = self.held, []
        for future in held:
            if error is not None:
                future.set_exception(error)
                continue
            reason = self.left_out.pop(0) if self.left_out else None
            self._version += reason is None
            future.set_result(
                StepResult(
                    applied=reason is None,
                    reason=reason,
                    metrics={"loss": 0.0, "clip_fraction": 0.0, "grad_norm": 0.0},
                )
            )

    def adapter(self) -> Adapter:
        """The adapter of the steps so far."""
        arrays = {
            "mlp.lora_a": np.full((2, 1), self._version, np.float32),
            "mlp.lora_b": np.full((1, 2), self._version, np.float32),
        }
        return Adapter(name="policy", version=self._version, shape=SHAPE, arrays=arrays)

    def save(self, folder: Path) -> None:
        """Write the number of steps and the trail."""
        state = {"version": self._version, "trail": self.trail}
        (folder / STATE_FILE).write_text(json.dumps(state))

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            CheckpointError: there is none.
        """
        try:
            state = json.loads((folder / STATE_FILE).read_text())
            self._version, self.trail = state["version"], state["trail"]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error


class FakePublisher:
    """Keeps what is published.

    Attributes:
        published: every adapter, in order.
        error: raised by the next ``publish`` where it is set.
    """

    def __init__(self) -> None:
        self.published: list[Adapter] = []
        self.error: Exception | None = None

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Take an adapter after one turn of the event loop."""
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.published.append(adapter)
        return adapter.info


class FakeTracker:
    """Keeps what is logged.

    Attributes:
        logged: (step, metrics), in order.
        closed: whether it was closed.
    """

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float | int | None]]] = []
        self.closed = False

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Keep one step's numbers."""
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        """Nothing is logged after this."""
        self.closed = True
