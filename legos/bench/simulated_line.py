"""The whole line on a virtual clock: real player, buffer, batcher, pool, pace and broadcaster.

Only the hardware is simulated: engines with rows, the link of the process that publishes, and the
trainer's device. Thousands of engines fit into one process, and what the process itself needs for a
sample is measured, because its own code is what runs.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from statistics import fmean

import numpy as np

from legos.arena.arena import Arena
from legos.arena.stage import Stage
from legos.arena.step import play_each
from legos.arena.table import Table
from legos.clients.pool import ServerPool
from legos.credit import GRPOCredit
from legos.data.episode import Episode, Task
from legos.data.message import Completion, Prompt, Sampling
from legos.data.names import POLICY
from legos.data.sample import Sample, TrainingBatch
from legos.data.step import Update
from legos.loop.loop import training_loop
from legos.loop.trainer import Metrics, PolicyTrainer, StepSettings
from legos.losses.objective import Objective
from legos.publish.broadcast import Broadcaster
from legos.testing import (
    FakeBackend,
    SharedLink,
    SimulatedEngine,
    in_virtual_time,
    numbered_tasks,
)
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["Design", "Found", "one_step", "simulate"]

SPREAD = 0.2  # lengths of answers are uniform within this share of their mean
PROMPT = tuple(range(1000, 1064))  # token ids of every prompt
VOCABULARY = 150_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The hardware of a run, and the settings of its loop."""

    engines: int
    rows: int = 8  # answers that an engine computes at the same time
    tokens_per_s: float = 50.0  # of one row
    latency_s: float = 0.2  # of a request, prefill included
    tool_s: float = 0.0  # pause of a play after its answer
    tokens: int = 256  # mean length of an answer
    long_share: float = 0.0  # share of plays that answer `long_times` as long
    long_times: float = 20.0
    group_size: int = 8
    groups_per_step: int
    staleness_limit: int = 3
    plays: int | None = None  # plays at the same time; None: as many as the limit admits
    trainer_tokens_per_s: float
    adapter_bytes: float = 0.0
    link_bytes_per_s: float = 1.25e9  # of the process that publishes: 10 Gbit/s
    engine_link_bytes_per_s: float = 1.25e9
    store_bytes_per_s: float | None = None  # of a file system that engines read
    load_s: float = 0.02  # an engine needs to load an adapter that has arrived

    @property
    def samples(self) -> int:
        """Samples of an optimiser step."""
        return self.groups_per_step * self.group_size

    @property
    def most_plays(self) -> int:
        """Plays at the same time."""
        return self.plays or self.samples * (self.staleness_limit + 1)

    def scaled(self, engines: int) -> "Design":
        """The same with another number of engines, and a step that grows with them."""
        groups = max(1, self.groups_per_step * engines // self.engines)
        plays = self.plays and max(1, self.plays * engines // self.engines)
        return replace(self, engines=engines, groups_per_step=groups, plays=plays)

    def answer_s(self, tokens: float) -> float:
        """Seconds in which an engine's row computes an answer."""
        return self.latency_s + tokens / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run did after its first steps, on the virtual clock but for the last field."""

    samples_per_s: float
    tokens_per_s: float
    trainer_busy: float  # share of time
    engines_busy: float  # share of the rows' time
    publish_s: float  # mean time of a publication for the trainer
    waiting_samples: float  # in the buffer when a step begins, beyond those of the step
    waiting_s: float  # from the end of a group to the step that trains on it
    play_s: float  # from the admission of a group to its end
    staleness_mean: float  # versions, of tokens
    staleness_max: float
    discarded: float  # share of the generated tokens
    lag_max: int  # versions by which an engine was behind
    cpu_s: float  # real CPU seconds of the process for a sample


class _Plays(Arena):
    """One question, whose answer has a drawn length, and a tool."""

    play_timeout_s = None

    def __init__(self, design: Design, client: "_Servers") -> None:
        super().__init__(client, credit_assigner=GRPOCredit())
        self._design = design
        self.tasks_per_step, self.group_size = design.groups_per_step, design.group_size

    def tasks(self, rng: Random) -> Iterable[Task]:
        """Tasks without data, none twice."""
        return numbered_tasks()

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask, wait, and earn a random reward."""
        design = self._design
        length = design.tokens * t.rng.uniform(1 - SPREAD, 1 + SPREAD)
        if t.rng.random() < design.long_share:
            length *= design.long_times
        await t.ask("player", "?", max_tokens=round(length))
        if design.tool_s:
            await asyncio.sleep(design.tool_s)
        return {"player": t.rng.random()}


class _Links:
    """Brings adapters to engines: a copy for each, or one that they read in a shared folder."""

    def __init__(self, design: Design) -> None:
        self._bytes, self._each = design.adapter_bytes, design.engine_link_bytes_per_s
        self._own = SharedLink(design.link_bytes_per_s, each_bytes_per_s=self._each)
        store = design.store_bytes_per_s
        self._store = None if store is None else SharedLink(store, each_bytes_per_s=self._each)
        self._written: tuple[int, asyncio.Task[None]] | None = None  # the newest version

    async def bring(self, version: int) -> None:
        """Bring a version to one engine."""
        if self._store is None:
            return await self._own.send(self._bytes)
        if self._written is None or self._written[0] < version:
            self._written = version, asyncio.create_task(self._own.send(self._bytes))
        await asyncio.shield(self._written[1])
        return await self._store.send(self._bytes)


class _Server:
    """An engine, and what loads adapters into it."""

    def __init__(self, name: str, design: Design, links: _Links) -> None:
        self.name = name
        self.engine = SimulatedEngine(design.rows)
        self._design, self._links = design, links
        self._live: Adapter | None = None

    async def answer(self, tokens: int) -> Completion:
        version = self._live.version if self._live else 0
        await self.engine.compute(self._design.answer_s(tokens))
        return _completion(tokens, version)

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        await self._links.bring(adapter.version)
        await asyncio.sleep(self._design.load_s)
        self._live = adapter
        return adapter.info

    async def drop(self, name: str) -> None:
        self._live = None

    async def healthy(self) -> bool:
        return True

    async def aclose(self) -> None:
        pass  # it has no connection


class _Servers:
    """A client of all engines, through the pool and what the broadcaster knows."""

    def __init__(self, servers: Sequence[_Server], broadcaster: Broadcaster) -> None:
        self._pool = ServerPool(servers, clock=_now)
        self._broadcaster = broadcaster

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        tokens = sampling.max_tokens or 1
        return await self._pool.ask(
            lambda server: server.answer(tokens),
            fits=lambda index: self._broadcaster.holds(index, adapter),
        )

    def figures(self) -> Mapping[str, float]:
        """What the loop is told about servers: the share of time in which they have requests."""
        return {"worked_seconds_total": self._pool.seconds}


@lru_cache(maxsize=1 << 14)
def _completion(tokens: int, version: int) -> Completion:
    """An answer with random tokens; answers of one length share them."""
    rng = np.random.default_rng(tokens)
    return Completion(
        token_ids=tuple(rng.integers(VOCABULARY, size=tokens).tolist()),
        logprobs=tuple((-rng.exponential(size=tokens)).astype(np.float32).tolist()),
        versions=(version,) * tokens,
        text="!",
        prompt_ids=PROMPT,
    )


class _Line:
    """The parts of a line, and what is noted while it runs."""

    def __init__(self, design: Design) -> None:
        self.design = design
        links = _Links(design)
        self.servers = [_Server(f"{n}", design, links) for n in range(design.engines)]
        self.broadcaster = Broadcaster((each.name, each) for each in self.servers)
        backend = FakeBackend(pass_s=self._pass_s, keep=False)
        self.trainer = PolicyTrainer(backend, self, _settings(design))
        self.arena = _Plays(design, _Servers(self.servers, self.broadcaster))
        self.play_s: list[float] = []  # of each group
        self.waiting_s: list[float] = []  # of each group that was trained on
        self.publish_s: list[float] = []
        self.lag_max = 0
        self.trained_s = 0.0  # seconds of all passes
        self.steps: list[tuple[Mapping[str, float], Metrics]] = []  # totals after it, its metrics
        self._ended: dict[str, float] = {}  # id of a task -> when its group ended
        self._pass_at = 0.0

    async def run(self, steps: int) -> None:
        """Play and train."""
        design, ahead = self.design, self.design.staleness_limit + 1
        try:
            await training_loop(
                self.arena,
                self.trainer,
                steps,
                episode_concurrency=-(-design.most_plays // ahead),
                step_concurrency=ahead,
                after_step=self._note,
                publisher=self,
                play=self._play,
                progress=False,
            )
        finally:
            await self.broadcaster.aclose()

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Publish, and note how long the trainer waits for it."""
        began = _now()
        self.lag_max = max(self.lag_max, *self.broadcaster.lags().values())
        info = await self.broadcaster.publish(adapter)
        self.publish_s.append(_now() - began)
        return info

    async def drop(self, name: str) -> None:
        """Drop an adapter."""
        await self.broadcaster.drop(name)

    async def _play(
        self, stage: Stage, arena: Arena, plays: Sequence[tuple[Task, int]]
    ) -> list[Episode]:
        began = _now()
        episodes = await play_each(stage, arena, plays)
        self._ended[plays[0][0].id] = now = _now()
        self.play_s.append(now - began)
        return episodes

    def _pass_s(self, samples: Sequence[Sample]) -> float:
        """Seconds in which the trainer's device computes a pass."""
        self._pass_at = _now()
        tokens = sum(len(sample.token_ids) for sample in samples)
        self.trained_s += tokens / self.design.trainer_tokens_per_s
        return tokens / self.design.trainer_tokens_per_s

    async def _note(self, metrics: Metrics, batches: Sequence[TrainingBatch]) -> None:
        """Note a step that has just ended."""
        ended = [self._ended.pop(batch.episodes[0].task.id) for batch in batches]
        self.waiting_s += [self._pass_at - each for each in ended]
        totals = {
            "at": _now(),
            "cpu": time.process_time(),
            "groups": len(self.play_s),
            "trained_groups": len(self.waiting_s),
            "trained_s": self.trained_s,
            "row_s": sum(server.engine.row_seconds for server in self.servers),
        }
        self.steps.append((totals, metrics))


def one_step(design: Design) -> TrainingBatch:
    """The plays of one optimiser step, for measurements of their records."""

    async def story() -> TrainingBatch:
        line = _Line(design)
        return await line.arena.step(concurrency=design.samples)

    return in_virtual_time(story())[0]


def simulate(design: Design, *, steps: int = 20, warm: int = 8) -> Found:
    """Run the line for some steps.

    Args:
        design: the hardware and the settings.
        steps: number of steps that are measured.
        warm: number of steps before them.
    """

    async def story() -> _Line:
        line = _Line(design)
        await line.run(warm + steps)
        return line

    line, _ = in_virtual_time(story())
    (first, before), (last, after) = line.steps[warm - 1], line.steps[-1]
    wall = last["at"] - first["at"]
    measured = [metrics for _, metrics in line.steps[warm:]]

    def mean(name: str) -> float:
        return fmean(float(metrics[name] or 0.0) for metrics in measured)

    def grown(name: str) -> float:
        return float(after[name] or 0.0) - float(before[name] or 0.0)

    samples = sum(int(metrics["samples_per_step"] or 0) for metrics in measured)
    return Found(
        samples_per_s=samples / wall,
        tokens_per_s=grown("tokens_trained") / wall,
        trainer_busy=(last["trained_s"] - first["trained_s"]) / wall,
        engines_busy=(last["row_s"] - first["row_s"]) / (wall * design.engines * design.rows),
        publish_s=fmean(line.publish_s[warm:]),
        waiting_samples=mean(f"replays/{line.arena.name}/rollouts"),
        waiting_s=fmean(line.waiting_s[int(first["trained_groups"]) :]),
        play_s=fmean(line.play_s[int(first["groups"]) :]),
        staleness_mean=mean("staleness_mean"),
        staleness_max=max(float(metrics["staleness_max"] or 0.0) for metrics in measured),
        discarded=(grown("tokens_filtered") + grown("tokens_discarded"))
        / grown("tokens_generated"),
        lag_max=line.lag_max,
        cpu_s=(last["cpu"] - first["cpu"]) / samples,
    )


def _settings(design: Design) -> StepSettings:
    return StepSettings(
        min_samples=1,
        staleness_limit=design.staleness_limit,
        normalisation="token",
        constant_length=1,
        objective=_objective,
        update=_update,
    )


def _objective(*_: object) -> Objective:
    return Objective()


def _update(*_: object) -> Update:
    return Update(learning_rate=1e-3)


def _now() -> float:
    return asyncio.get_running_loop().time()
