"""All protocols of the kit on one page: what each part expects of the others.

    tasks → Player → group of Episodes → credit → Samples → Buffer → Backend → Adapter v+1
               ↑ Matchmaker.seats
               ↑ Seat.ask → Client → Engine ←────────── Publisher ←─────────────┘

A client for tests is in ``legos.fakes``; the protocols of a device are in ``legos.device``.
"""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from legos.losses.alarms import Alarm
from legos.losses.objective import Objective
from legos.records.count import Count
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Prompt, Questions, Sampling, ScoredRows
from legos.records.names import POLICY, adapter_name
from legos.records.request import Request, Result
from legos.records.sample import Sample
from legos.records.step import PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, AdapterInfo

Deliver = Callable[[Sequence[tuple[int, Result]]], None]
Snapshot = Callable[[Path], object]
"""Writes the state of a backend into an existing folder; any thread may call it."""
Ratios = Callable[[], Any] | None
"""Computes the importance ratios of all trained tokens of a step: [A] floats."""


class Client(Protocol):
    """Answers the prompts of a seat; implementations are in ``legos/clients``."""

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Sample one completion of chat messages, token ids or a continued conversation.

        A prompt is a ``Continuation`` only if this client returned token ids before.

        Raises:
            RequestError: the request cannot be served.
            EndpointError: an HTTP endpoint failed after its retries; only this play fails.
            EngineError: the engine or server of the policy has died; the run ends.
        """


class BatchClient(Client, Protocol):
    """A client that also answers through a callback, so that a thousand plays need no task each."""

    def prepare(self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY) -> Any | None:
        """Prepare a question that can be asked many times, with a seed each.

        Returns:
            An argument for ``begin``; None: the request needs work that would block the event
            loop, so ask ``complete``.

        Raises:
            RequestError: the request cannot be served.
        """

    def begin(self, prepared: Any, seed: int, done: Callable[[Completion | Exception], Any]) -> int:
        """Start a completion in the running event loop; returns a number for ``cancel``.

        ``done`` gets the completion, or the error, later.
        """

    def cancel(self, number: int) -> None:
        """End a completion; its ``done`` is not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The player of a role; fixed for the whole episode and recorded in its rollout."""

    role: str
    client: Client
    name: str = POLICY  # the policy being trained, an older adapter, a bot, an outside endpoint
    adapter: str = POLICY  # the client's adapter that answers; NAME@VERSION selects a version
    trainable: bool = True  # False: its turns are recorded but never trained on
    sampling: Sampling = field(default_factory=Sampling)  # defaults of the seat's requests

    @property
    def policy(self) -> str | None:
        """Name of the trained adapter that its tokens belong to; None: they are not trained on."""
        return adapter_name(self.adapter) if self.trainable else None


class Seating(Protocol):
    """The part of an arena that a matchmaker uses."""

    @property
    def name(self) -> str:
        """The arena's name."""

    @property
    def roles(self) -> Sequence[str]:
        """The roles in a play."""

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """The default seat of each role."""


class Matchmaker(Protocol):
    """Decides who sits in which seat of a play; a subclass inherits what it does not define."""

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """Role -> seat for one play.

        Args:
            arena: the arena to play; ``arena.seats(task)`` gives its default seats.
            task: the task to play.
            seed: seed of this play only, and the same in a resumed run.
        """

    def record(self, episode: Episode) -> None:
        """Record a play whose group has ended; none of an evaluation, and no spawned play."""
        return

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs (ratings, a pool), as JSON values; by default none."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` or ``seating`` returned."""
        return

    def evaluation(self) -> "Matchmaker":
        """The matchmaker of evaluations; by default this one."""
        return self

    def seating(self) -> dict[str, Any]:
        """The part of the state that ``seats`` reads, for players elsewhere; by default all."""
        return self.state()


class Scorer(Protocol):
    """A client that reports probabilities without sampling, for exact evaluations."""

    async def score(
        self, prompts: Questions, *, adapter: str = POLICY, restricted: bool = False
    ) -> Sequence[Sequence[float]]:
        """Log-probability (nats, temperature 1) of each choice as the complete answer.

        With ``restricted``, their shares are those of sampling among the choices alone, token by
        token; the sum of their probabilities is that of free sampling.
        """


class Engine(Protocol):
    """The part that generates tokens; its methods can be called from any thread."""

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Queue requests under numbers that the caller chooses.

        ``deliver`` is called from the engine's thread, once or more, with finished requests. Every
        number is delivered exactly once, with its result or the error that stopped it. Before that,
        a request with ``stream`` gets its tokens as they are sampled (``Progress``).
        """

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; each delivers its tokens so far, with finish reason "cancelled"."""

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Load an adapter under its name; the future returns the adapter that is live then.

        The future raises ``AdapterError`` if the adapter does not fit; the previous one then stays.
        """

    def drop_adapter(self, name: str) -> "Future[None]":
        """Drop a named adapter; the future raises ``AdapterError`` for unknown names."""

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters: name -> version and digest."""

    def stats(self) -> Mapping[str, float]:
        """What the engine counts and holds: counters end in ``_total``, sizes in ``_bytes``.

        Raises:
            EngineError: it is closed, or its thread has died or hangs; the message says why.
        """

    def score(
        self,
        prompts: ScoredRows,
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation as the complete answer to its prompt, nats.

        With ``by_token`` each prompt has one continuation, and the result is that of its tokens.
        """


class Backend(Protocol):
    """The part that computes gradients; it owns the trained policies and their optimisers."""

    @property
    def passes(self) -> Count:
        """The passes of the ``forward_backward`` that is computed; asked on any thread."""

    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        *,
        policy: str = POLICY,
        stop: Stop = never,
    ) -> "Future[PassResult]":
        """Compute loss and gradients of a step's samples, without changing the policy.

        The backend packs the samples. It keeps the gradients until ``optim_step`` or the next call.

        Args:
            samples: [S] all samples of one optimiser step, at least one.
            weights: [S] the weight of each sample's tokens in the loss of the step.
            objective: the loss to minimise.
            policy: name of the policy; each has its own LoRA arrays, optimiser and version.
            stop: asked between two passes; once it returns True, the future raises ``Stopped``.
        """

    def optim_step(self, update: Update, *, policies: Sequence[str] = (POLICY,)) -> "Future[None]":
        """Apply the gradients of the last ``forward_backward`` of each policy: of all or none."""

    def adapter(self, policy: str = POLICY) -> Adapter:
        """The current adapter of a policy; its arrays never change afterwards."""

    def take(self, adapter: Adapter, *, policy: str = POLICY) -> "Future[int]":
        """Go on from other weights, as the next version; the optimiser and the EMA start again."""

    def snapshot(self) -> "Future[Snapshot]":
        """Every policy, its EMA and its optimiser as they are now; later steps do not change it."""

    def restore(self, folder: Path) -> None:
        """Read what a snapshot wrote; raises ``CheckpointError`` if it does not fit."""


class Publisher(Protocol):
    """Loads a new adapter into the engines."""

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once all engines have loaded the adapter, with the version and digest loaded."""

    async def drop(self, name: str) -> None:
        """Drop a published adapter from all engines; running requests finish with it."""


@runtime_checkable
class CreditAssigner(Protocol):
    """Turns rewards into advantages; each rule is one file in ``legos/credit``.

    A rule is a subclass, which inherits what it does not define. It gets the episodes of one group,
    which belong to one task, or those of all tasks of a step (``needs_step``).

    Attributes:
        needs_step: whether it compares plays of different tasks, or keeps baselines that change
            once per step; it then gets the episodes of ``Arena.tasks_per_step`` tasks.
        singletons: number of returns so far that no other play had anything to compare with.
    """

    needs_step: bool = False
    singletons: int = 0

    def assign(self, episodes: Sequence[Episode]) -> Sequence[Mapping[str, Sequence[float]]]:
        """One mapping per episode: trained role -> one advantage per turn of its rollout."""

    def scope(self, episodes: Sequence[Episode]) -> Sequence[Hashable]:
        """[E] keys: only episodes with equal keys are compared; by default all have the same."""
        return [None] * len(episodes)

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs (baselines), as JSON values; by default none."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        return


class Curriculum(Protocol):
    """Chooses the levels of tasks by the success of earlier plays; a subclass inherits the rest."""

    def choose(self, levels: Sequence[str], rng: random.Random) -> str:
        """The level of the next task.

        Args:
            levels: the arena's levels, easiest first.
            rng: the only source of randomness, so that a resumed run chooses the same levels.
        """

    def record(self, level: str, successes: Sequence[float]) -> None:
        """Take note of a group's finished plays of a level: of each, its success from 0 to 1."""
        return

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs (each success), as JSON values; by default none."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        return


class RewardModel(Protocol):
    """Scores completions; one that is written once serves any arena.

    Code that may hang is called through ``Table.run(model.score, [prompt], [completion],
    [answer])``, for which the model must be picklable.
    """

    def score(
        self, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[Any]
    ) -> Sequence[float]:
        """[N] rewards of N completions.

        Args:
            prompts: [N] what was asked.
            completions: [N] what was answered, without thinking.
            answers: [N] the known answers.
        """


class Tracker(Protocol):
    """Receives the metrics, plays and alarms of a run."""

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Record the metrics of one optimiser step.

        The metrics of an evaluation (``eval/...``) may come in a later call of their own, also
        after those of later steps. Step 0 has only metrics.
        """

    def plays(
        self, episodes: Sequence[Episode], *, step: int, evaluation: bool, ratios: Ratios = None
    ) -> None:
        """Record the plays of a step or of an evaluation, before its metrics."""
        return

    def alert(self, alarm: Alarm, *, step: int) -> None:
        """Record an alarm that a step has raised, before its metrics."""
        return

    def close(self) -> None:
        """Write all pending data and close."""
