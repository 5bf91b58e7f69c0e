"""Fakes: a backend without gradients, a publisher without engines, a tracker without files."""

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fakes.futures import answered
from legos.errors import CheckpointError, Stopped
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.protocols import Snapshot, Tracker
from legos.records.count import Count
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.records.step import PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, AdapterInfo, LoraShape

__all__ = ["FakeBackend", "FakePublisher", "FakeTracker"]

SHAPE = LoraShape(rank=1, scale=1.0, num_layers=1, modules=("mlp",))
STATE_FILE = "fake_backend.json"


class FakeBackend:
    """A backend that counts steps; every element of its adapter is their number.

    Attributes:
        value: every element of the adapter; it goes on from what ``take`` gives.
        steps: (samples, weights, objective) of every ``forward_backward``.
        updates: every applied update.
        left_out: reasons to skip the next steps ("clip_skip" or "non_finite"), used in order; None:
            the step is applied.
        passes: none, as it computes a step at once.
        trail: digest of everything that it was trained on, in order; a snapshot has it.
    """

    def __init__(self) -> None:
        """Make a backend at version 0."""
        self._version = self.value = 0
        self.steps: list[tuple[Sequence[Sample], Sequence[float], Objective]] = []
        self.updates: list[Update] = []
        self.left_out: list[str | None] = []
        self.trail = ""
        self.passes = Count(unit="passes")

    @property
    def version(self) -> int:
        """Number of updates applied so far."""
        return self._version

    @answered
    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        *,
        policy: str = POLICY,
        stop: Stop = never,
    ) -> PassResult:
        """Record a step; its result has no loss, or makes the trainer skip the step."""
        if stop():
            raise Stopped
        self.steps.append((samples, weights, objective))
        self._digest(f"{samples} {weights} {objective}")
        reason = self.left_out.pop(0) if self.left_out else None
        sums = dict.fromkeys(SUMS, 0.0) | dict.fromkeys(("tokens", "ratio"), 1.0)
        sums["clipped"] = float(reason == "clip_skip")
        return PassResult(
            loss=math.nan if reason == "non_finite" else 0.0,
            sums=tuple(sums.values()),
            grad_norm=0.0,
            logprobs=[np.array(s.logprobs, np.float32) for s in samples],
        )

    @answered
    def optim_step(self, update: Update, *, policies: Sequence[str] = (POLICY,)) -> None:
        """Record and count an update."""
        self.updates.append(update)
        self._digest(f"{update}")
        self._version += 1
        self.value += 1

    def _digest(self, text: str) -> None:
        self.trail = hashlib.sha256(f"{self.trail} {text}".encode()).hexdigest()

    def adapter(self, policy: str = POLICY) -> Adapter:
        """The adapter, filled with its value."""
        arrays = {
            "mlp.lora_a": np.full((2, 1), self.value, np.float32),
            "mlp.lora_b": np.full((1, 2), self.value, np.float32),
        }
        return Adapter(name=POLICY, version=self._version, shape=SHAPE, arrays=arrays)

    @answered
    def take(self, adapter: Adapter, *, policy: str = POLICY) -> int:
        """Go on from the value of an adapter."""
        self._version += 1
        self.value = int(adapter.arrays["mlp.lora_a"][0, 0])
        return self._version

    @answered
    def snapshot(self) -> Snapshot:
        """The version, the value and the trail."""
        state = json.dumps({"version": self._version, "value": self.value, "trail": self.trail})
        return lambda folder: (folder / STATE_FILE).write_text(state)

    def restore(self, folder: Path) -> None:
        """Read what a snapshot wrote.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        try:
            state = json.loads((folder / STATE_FILE).read_text())
            self._version, self.value, self.trail = (
                state[name] for name in ("version", "value", "trail")
            )
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder} cannot be restored: {error}") from error


class FakePublisher:
    """A publisher that records what is published.

    Attributes:
        published: every adapter, in order.
        live: name of each adapter that is live -> the adapter.
        dropped: name of every dropped adapter, in order.
        error: if set, every ``publish`` raises it.
    """

    def __init__(self) -> None:
        self.published: list[Adapter] = []
        self.live: dict[str, Adapter] = {}
        self.dropped: list[str] = []
        self.error: Exception | None = None

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Record an adapter after one turn of the event loop."""
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.published.append(adapter)
        self.live[adapter.name] = adapter
        return adapter.info

    async def drop(self, name: str) -> None:
        """Record the name after one turn of the event loop."""
        await asyncio.sleep(0)
        self.dropped.append(name)
        del self.live[name]


class FakeTracker(Tracker):
    """A tracker that records what is logged.

    Attributes:
        logged: (step, metrics) of every call, in order.
        closed: whether it was closed.
    """

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float | int | None]]] = []
        self.closed = False

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Record the metrics of one step."""
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True
