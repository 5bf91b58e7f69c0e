"""Parts of a run that take drawn times, and fail at drawn times."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from fakes import FakeBackend
from made_records import make_episode, make_turn

from legos.errors import CheckpointError, EngineError, RequestError, TrainerError
from legos.fakes import Asked, ScriptedClient
from legos.losses.objective import Objective
from legos.protocols import Snapshot
from legos.records.count import Count
from legos.records.episode import Episode
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY
from legos.records.step import PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = [
    "DEVICE_S",
    "Nature",
    "SlowBackend",
    "SlowClient",
    "SlowEvaluation",
    "SlowPublisher",
    "SlowWriter",
]

DEVICE_S = 0.5  # longest call of a device, an engine or a disk


class Nature:
    """Draws how long things take, and whether they fail."""

    def __init__(self, seed: str, *, calm: bool) -> None:
        self.rng = random.Random(seed)
        self._rare = 0.0 if calm else self.rng.choice((0.0, 0.004, 0.02))
        self._slow = self.rng.choice((0.0, 0.01, 0.1))
        self.refused = 0.0 if calm else self.rng.choice((0.0, 0.05, 0.2))

    def device_s(self) -> float:
        """Seconds of a call of a device; many are equal, so that ties are common."""
        return self.rng.choice((0.0, 0.0, 0.01, 0.01, self.rng.random() * DEVICE_S))

    def play_s(self) -> float:
        """Seconds of a completion; a few take a hundred times as long as the others."""
        return self.device_s() * (100 if self.rng.random() < self._slow else 1)

    def may_fail(self, error: Callable[[str], Exception]) -> None:
        """Raise an error, rarely."""
        if self.rng.random() < self._rare:
            raise error("injected")


class SlowClient:
    """A scripted client whose answers take time; the adapter may change meanwhile."""

    def __init__(self, nature: Nature, live: "SlowPublisher") -> None:
        self._nature = nature
        self._live = live
        self._scripted = ScriptedClient(self._answer)
        self.tokens = 0
        self.refused = 0

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        await asyncio.sleep(self._nature.play_s())
        self._nature.may_fail(EngineError)
        if self._nature.rng.random() < self._nature.refused:
            self.refused += 1
            raise RequestError("injected")
        self._scripted.version = self._live.version
        return await self._scripted.complete(prompt, sampling, adapter=adapter)

    def _answer(self, asked: Asked) -> str:
        self.tokens += 2  # a digit and the end
        return str(asked.sampling.seed % 10)


class SlowPublisher:
    """A publisher whose calls take time and may fail."""

    def __init__(self, nature: Nature) -> None:
        self._nature = nature
        self.version = 0

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        await asyncio.sleep(self._nature.device_s())
        self._nature.may_fail(EngineError)
        if adapter.name == POLICY:  # not the copy of one that is evaluated
            assert adapter.version >= self.version, "an older version replaces a newer one"
            self.version = adapter.version
        return adapter.info

    async def drop(self, name: str) -> None:
        await asyncio.sleep(self._nature.device_s())


class SlowBackend(FakeBackend):
    """A backend whose calls end later, and cannot be cancelled meanwhile."""

    def __init__(self, nature: Nature) -> None:
        super().__init__()
        self._nature = nature

    def forward_backward(
        self,
        samples: Any,
        weights: Any,
        objective: Objective,
        *,
        policy: str = POLICY,
        stop: Stop = never,
    ) -> "Future[PassResult]":
        versions = {version for sample in samples for version in sample.versions}
        assert max(versions) <= self.version, "a token of a version that does not exist yet"
        call = partial(
            super().forward_backward, samples, weights, objective, policy=policy, stop=stop
        )
        return self._later(call, TrainerError)

    def optim_step(self, update: Update, *, policies: Sequence[str] = (POLICY,)) -> "Future[None]":
        return self._later(partial(super().optim_step, update, policies=policies))

    def snapshot(self) -> "Future[Snapshot]":
        return self._later(super().snapshot)

    def _later(
        self, call: Callable[[], "Future[Any]"], error: Callable[[str], Exception] | None = None
    ) -> "Future[Any]":
        def result() -> Any:
            if error is not None:
                self._nature.may_fail(error)
            return call().result()

        return later(self._nature, result)


class SlowWriter(Executor):
    """Writes checkpoints later, or cannot write them."""

    def __init__(self, nature: Nature) -> None:
        self._nature = nature

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        def write() -> Any:
            self._nature.may_fail(CheckpointError)
            return fn(*args, **kwargs)

        return later(self._nature, write)


def later(nature: Nature, call: Callable[[], Any]) -> "Future[Any]":
    """A future of a call that is made after a drawn time."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # as a call of a device that has begun

    def finish() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    asyncio.get_running_loop().call_later(nature.device_s(), finish)
    return future


class SlowEvaluation:
    """An evaluation of a few waits, which samples tokens."""

    count = Count(1)

    def __init__(self, nature: Nature) -> None:
        self._nature = nature
        self.tokens_generated = 0
        self.episodes: tuple[Episode, ...] = (
            make_episode({"only": 0.0}, turns={"only": (make_turn(token_ids=range(5)),)}),
        )

    async def metrics(self, *, adapters: Mapping[str, str] | None = None) -> dict[str, Any]:
        for _ in range(3):
            await asyncio.sleep(self._nature.device_s())
        self.tokens_generated += 5
        return {"arena": "duel", "share": 0.5}
