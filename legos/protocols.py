"""Every seam of the kit on one page: what each part expects of its neighbours.

    tasks → Player → group of Episodes → credit → Samples → Buffer → Backend → Adapter v+1
               ↑ Matchmaker.seats
               ↑ Seat.ask → Client → Engine ←────────── Publisher ←─────────────┘

The fakes for tests are in ``legos.testing``; the seams of a device stand in ``legos/device.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from legos.data.episode import Episode, Task
from legos.data.message import Completion, Message, Prompt, Sampling
from legos.data.names import POLICY, adapter_name
from legos.data.request import Request, Result
from legos.data.sample import Sample
from legos.data.step import PassResult, Update
from legos.losses.objective import Objective
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = [
    "Backend",
    "Client",
    "CreditAssigner",
    "Deliver",
    "Engine",
    "Matchmaker",
    "Publisher",
    "Scorer",
    "Seat",
    "Seating",
    "Tracker",
]

Deliver = Callable[[Sequence[tuple[int, Result]]], None]


class Client(Protocol):
    """Anything a seat can ask; implementations live in ``legos/clients``."""

    async def complete(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        adapter: str = POLICY,
    ) -> Completion:
        """Sample one completion of chat messages, token ids or a conversation that goes on.

        A prompt is a ``Continuation`` only where this client returned token ids before.

        Raises:
            RequestError: the request cannot be served.
            EndpointError: an HTTP endpoint failed after its retries; the play fails alone.
            EngineError: what serves the policy has died; the run ends.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Who answers for a role; pinned for the whole episode and recorded in its rollout."""

    role: str
    client: Client
    name: str = POLICY  # the policy being trained, an older adapter, a bot, an outside endpoint
    adapter: str = POLICY  # which of the client's adapters speaks; NAME@VERSION pins a version
    trainable: bool = True  # False: its turns are recorded and never trained on
    sampling: Sampling = field(default_factory=Sampling)  # what an ask does not say otherwise

    @property
    def policy(self) -> str | None:
        """Name of the trained adapter that its tokens belong to; None: they are not trained on."""
        return adapter_name(self.adapter) if self.trainable else None


class Seating(Protocol):
    """What a matchmaker reads of an arena."""

    @property
    def name(self) -> str:
        """The arena's name."""
        ...

    @property
    def roles(self) -> Sequence[str]:
        """The parts in a play."""
        ...

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """Who sits where if nobody else decides."""
        ...


class Matchmaker(Protocol):
    """Who sits where in a play."""

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """Role -> seat for one play.

        Args:
            arena: what is played; ``arena.seats(task)`` is its own choice.
            task: which task.
            seed: of this play alone; a run that is resumed plays with the same seeds, and draws
                the same seats where they follow from the seed and the state.
        """
        ...

    def record(self, episode: Episode) -> None:
        """Take note of a play that ended or failed, when its group has ended.

        Plays of an evaluation and plays that another play spawned are not recorded.
        """
        ...

    def state(self) -> dict[str, Any]:
        """What a resumed run needs (ratings, a pool of rivals), as JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        ...


class Scorer(Protocol):
    """A client that tells probabilities without sampling; what exact evaluations read."""

    async def score(
        self,
        prompts: Sequence[tuple[Sequence[Message], Sequence[str]]],
        *,
        adapter: str = POLICY,
    ) -> Sequence[Sequence[float]]:
        """Log-probability (nats, temperature 1) of each choice as the whole answer to a prompt."""
        ...


class Engine(Protocol):
    """The thing that generates; safe to call from any thread."""

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests under the caller's own numbers.

        ``deliver`` is called from the engine's thread, once or more, with the finished ones; every
        number is delivered exactly once, with what was sampled or with the error that stopped it.
        Before that, a request that asked for it gets its tokens as they come (``Progress``).
        """
        ...

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; each is delivered as far as it came, finish reason "cancelled"."""
        ...

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Make an adapter live under its name; the future holds what is live then.

        It raises ``AdapterError`` where the adapter does not fit; what was live before stays.
        """
        ...

    def drop_adapter(self, name: str) -> "Future[None]":
        """Forget a named adapter; the future raises ``AdapterError`` for unknown names."""
        ...

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        ...

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters: name -> version and digest."""
        ...

    def stats(self) -> Mapping[str, float]:
        """What it has done and holds now: counts end in ``_total``, sizes in ``_bytes``.

        Raises:
            EngineError: it is closed, or its thread has died or is stuck; the message says why.
        """
        ...

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation as the whole answer to its prompt."""
        ...


class Backend(Protocol):
    """The thing that computes gradients; it owns the trained policies and their optimisers."""

    @property
    def version(self) -> int:
        """Optimiser steps applied so far to the policy of the default name."""
        ...

    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        *,
        policy: str = POLICY,
    ) -> "Future[PassResult]":
        """Compute loss and gradients of a step's samples; the policy stays as it is.

        The backend packs the samples. Gradients are kept until ``optim_step``, or until the next
        call replaces them.

        Args:
            samples: [S] all samples of one optimiser step, at least one.
            weights: [S] the weight of each sample's tokens in the loss of the step.
            objective: what to minimise.
            policy: which one; each has LoRA arrays, an optimiser and a version of its own.
        """
        ...

    def optim_step(self, update: Update, *, policy: str = POLICY) -> "Future[int]":
        """Apply the gradients of the policy's last ``forward_backward``; its version after it."""
        ...

    def logprobs(
        self, samples: Sequence[Sample], *, policy: str = POLICY, reference: bool = False
    ) -> "Future[Sequence[NDArray[np.float32]]]":
        """[S][A] nats of each sample's chosen tokens, at its temperature, computed in float32.

        Args:
            samples: any number; they need not fit into one step.
            policy: under which one.
            reference: under the policy that its divergence is measured from instead.
        """
        ...

    def adapter(self, policy: str = POLICY) -> Adapter:
        """A policy's adapter as trained so far; its arrays never change afterwards."""
        ...

    def save(self, folder: Path) -> None:
        """Write every policy, its EMA and its optimiser into an existing folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote; raises ``CheckpointError`` where it does not fit."""
        ...


class Publisher(Protocol):
    """How a new adapter reaches every engine."""

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once the adapter is live everywhere, with the version and digest that are live."""
        ...


class CreditAssigner(Protocol):
    """Rewards to advantages; one file each in ``legos/credit``.

    A rule gets the episodes of one group, which are of one task. One that compares plays of
    different tasks, or keeps baselines that move once a step, has ``needs_step = True`` and gets
    the episodes of a whole step's worth of tasks (``Arena.tasks_per_step``).
    """

    def assign(self, episodes: Sequence[Episode]) -> Sequence[Mapping[str, Sequence[float]]]:
        """One mapping per episode: trained role -> one advantage per turn of its rollout."""
        ...

    def state(self) -> dict[str, Any]:
        """What a resumed run needs (baselines), as JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        ...


class Tracker(Protocol):
    """Where numbers go."""

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Record one optimiser step's numbers."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...
