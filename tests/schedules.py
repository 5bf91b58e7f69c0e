"""A run whose every wait is drawn from a seed: slow, failing, stopped, killed, and resumed.

Everything that takes time in a run (a completion, a pass of the backend, a publish, an evaluation,
the write of a checkpoint) takes a drawn time of a virtual clock, and may fail. A schedule is a run
in sessions: each ends by itself, by a stop, by an injected error, or by a kill, which leaves the
files as they are at that moment; the next one resumes, until all steps are done.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from accounts import balanced_ledger
from run_world import Duel, Solo, step_settings

from legos.credit import GRPOCredit, RAECredit
from legos.data.message import Completion, Prompt, Sampling
from legos.data.names import POLICY
from legos.data.shares import Portion
from legos.data.step import PassResult, Update
from legos.errors import ArenaError, CheckpointError, EngineError, RequestError, TrainerError
from legos.loop.mix import Mix
from legos.loop.trainer import PolicyTrainer
from legos.losses.objective import Objective
from legos.protocols import Snapshot
from legos.run.folder import RunFolder
from legos.run.run import Run, RunSettings
from legos.testing import Asked, FakeBackend, ScriptedClient, in_virtual_time
from legos.track.jsonl import JsonlTracker, read_steps
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["DEVICE_S", "STOP_S", "Account", "play_schedule", "seconds_to_stop"]

STEPS, SAMPLES = 4, 4  # of a run; of a step
SESSIONS = 12  # the last ones are not disturbed
DEVICE_S = 0.5  # longest call of a device, an engine or a disk
STOP_S = 2.0  # a run ends so soon after a stop, beyond calls that run
ERRORS = (EngineError, TrainerError, CheckpointError, ArenaError)  # what is injected ends in


class Account(NamedTuple):
    """What happened in a schedule."""

    sessions: int
    stops: int
    kills: int
    errors: int
    failed_plays: int
    tokens: int


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
        self, samples: Any, weights: Any, objective: Objective, *, policy: str = POLICY
    ) -> "Future[PassResult]":
        versions = {version for sample in samples for version in sample.versions}
        assert max(versions) <= self.version, "a token of a version that does not exist yet"
        call = partial(super().forward_backward, samples, weights, objective, policy=policy)
        return self._later(call, TrainerError)

    def optim_step(self, update: Update, *, policy: str = POLICY) -> "Future[int]":
        return self._later(partial(super().optim_step, update, policy=policy))

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

    def __init__(self, nature: Nature) -> None:
        self._nature = nature
        self.tokens_generated = 0

    async def figures(self, *, adapters: Mapping[str, str] | None = None) -> dict[str, Any]:
        for _ in range(3):
            await asyncio.sleep(self._nature.device_s())
        self.tokens_generated += 5
        return {"arena": "duel", "share": 0.5}


class Session:
    """One process of a run: everything is made anew, and what it knows comes from the folder."""

    def __init__(
        self, path: Path, nature: Nature, *, limit: int, players: int, mixed: bool, samples: int
    ) -> None:
        self.nature = nature
        self.stopping_s: float | None = None  # from the wish to stop until the end
        self.folder = RunFolder(path)
        self.publisher = SlowPublisher(nature)
        self.client = SlowClient(nature, self.publisher)
        self.evaluation = SlowEvaluation(nature)
        settings = step_settings(limit, samples=samples)
        self.trainer = PolicyTrainer(SlowBackend(nature), self.publisher, settings)
        duel = Duel(self.client, credit_assigner=RAECredit())
        solo = Solo(self.client, credit_assigner=GRPOCredit())
        self.run = Run(
            self.folder,
            Mix({duel: 0.5, solo: Portion(0.5, order="newest")}, tokens_per_step=3 * samples)
            if mixed
            else duel,
            self.trainer,
            RunSettings(
                num_steps=STEPS,
                episode_concurrency=4,
                step_concurrency=players,
                checkpoint_every=2,
                checkpoint_seconds=200.0,
                keep_checkpoints=2,
                evaluate_every=3,
                evaluation_alone=limit == 0,
                episodes_kept=1,
            ),
            evaluation=self.evaluation,
            count_tokens=self.count,
            engine_figures=dict,
            writer=SlowWriter(nature),
            clock=lambda: asyncio.get_running_loop().time() if _running() else 0.0,
        )

    async def count(self) -> int:
        return self.client.tokens + self.evaluation.tokens_generated

    async def go(self, *, stop_s: float | None, killed_s: float | None, left: Path) -> bool:
        """Run until something ends it; returns whether the run has finished.

        Args:
            stop_s: when the run is asked to stop; None: never.
            killed_s: when the folder is copied, as a kill would leave it; None: never.
            left: where the copy is put.
        """
        loop = asyncio.get_running_loop()
        others: list[asyncio.Task[None]] = []

        async def stop(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await self.run.stop()

        async def kill(after_s: float) -> None:
            await asyncio.sleep(after_s)
            shutil.copytree(self.folder.path, left)
            await self.run.stop()

        if stop_s is not None:
            others.append(loop.create_task(stop(stop_s)))
        if killed_s is not None:
            others.append(loop.create_task(kill(killed_s)))
        with (
            closing(JsonlTracker(self.folder.metrics)) as metrics,
            closing(JsonlTracker(self.folder.evaluations)) as evaluations,
        ):
            try:
                finished = await self.run.go(metrics, evaluations)
            finally:
                for other in others:
                    other.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left waiting"
        asked = min((s for s in (stop_s, killed_s) if s is not None), default=None)
        if not finished:
            assert asked is not None, "the run stopped, but nobody had asked"
            self.stopping_s = loop.time() - asked
            assert self.stopping_s <= STOP_S + 4 * DEVICE_S, "the run ended late"
        return finished


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def play_schedule(seed: int, place: Path, *, samples: int = SAMPLES) -> Account:
    """Play one schedule to the end of its run, and check every session.

    Args:
        seed: determines, with the samples, everything that happens.
        place: an empty folder; what is in it afterwards belongs to the last session.
        samples: of one step.

    Raises:
        AssertionError: the run broke a promise.
    """
    draw = random.Random(seed)
    limit, players = draw.choice(((0, 1), (1, 1), (1, 2), (3, 2)))
    mixed = draw.random() < 0.5
    path, seen = place / "run-0", Account(0, 0, 0, 0, 0, 0)
    for number in range(SESSIONS + 1):
        calm = number >= SESSIONS // 2
        nature = Nature(f"{seed} {number}", calm=calm)
        session = Session(path, nature, limit=limit, players=players, mixed=mixed, samples=samples)
        stop_s = killed_s = None
        if not calm:
            at_s = draw.choice((draw.random(), 10 * draw.random()))
            stop_s, killed_s = draw.choice(((at_s, None), (None, at_s), (None, None)))
        left = place / f"run-{number + 1}"
        found = path.exists()
        ended, booked = _live(session, stop_s=stop_s, killed_s=killed_s, left=left)
        seen = Account(
            number + 1,
            seen.stops + (ended == "stopped" and killed_s is None),
            seen.kills + left.exists(),
            seen.errors + (ended == "error"),
            seen.failed_plays + session.client.refused,
            seen.tokens + session.client.tokens,
        )
        _check(session, ended, booked, limit=limit, found=found)
        if left.exists():
            path = left
        elif ended == "finished":
            return seen
    raise AssertionError(f"the run has not ended after {SESSIONS} sessions")


def seconds_to_stop(seed: int, place: Path) -> float | None:
    """Start a run, stop it at a random moment, and check what it leaves.

    Args:
        seed: determines everything that happens; nothing fails but plays.
        place: an empty folder.

    Returns:
        Seconds from the wish to stop until the run has ended; None: it had finished before.
    """
    draw = random.Random(seed)
    limit, players = draw.choice(((0, 1), (1, 1), (1, 2), (3, 2)))
    nature = Nature(f"stop {seed}", calm=True)
    mode: Any = {"limit": limit, "players": players, "mixed": seed % 2 == 0, "samples": SAMPLES}
    session = Session(place / "run", nature, **mode)
    ended, booked = _live(session, stop_s=3 * draw.random(), killed_s=None, left=place / "left")
    _check(session, ended, booked, limit=limit, found=False)
    return session.stopping_s


def _live(
    session: Session, *, stop_s: float | None, killed_s: float | None, left: Path
) -> tuple[str, int]:
    """Start or resume the run; returns how the session ended, and the tokens booked before it."""
    folder, booked = session.folder, 0
    begun = folder.resumed_run() if folder.path.exists() else folder.new_run("# settings")
    try:
        with begun as checkpoint:
            if checkpoint is not None:
                session.run.resume(checkpoint)
                booked = session.trainer.ledger.generated
            story = session.go(stop_s=stop_s, killed_s=killed_s, left=left)
            finished, _ = in_virtual_time(story)
    except ERRORS as error:
        if "injected" not in str(error):
            raise
        return "error", booked
    return "finished" if finished else "stopped", booked


def _check(session: Session, ended: str, booked: int, *, limit: int, found: bool) -> None:
    """Check the books and the files after a session.

    Args:
        session: what was played.
        ended: how it ended.
        booked: number of tokens in the ledger with which it began.
        limit: the staleness limit.
        found: whether its folder was there before it, left by a session that was killed.
    """
    if not any((session.folder.path / "checkpoints").glob("*")):
        # An error before the first checkpoint leaves nothing but what it found.
        assert ended == "error"
        assert found or not session.folder.path.exists()
        return
    lines = read_steps(session.folder.metrics)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(int(line["staleness_max"] or 0) <= limit for line in lines)
    assert ended != "finished" or len(lines) == STEPS
    ledger = balanced_ledger(session.folder.path)
    if ended != "error":  # its last checkpoint may be one that could not be written
        sampled = session.client.tokens + session.evaluation.tokens_generated
        assert ledger["generated"] == booked + sampled
