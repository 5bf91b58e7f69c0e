"""A run without a model, and everything around it, in one process."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import pytest
from accounts import checked_ledger
from fakes import FakeBackend, FakePublisher
from made_records import make_episode, make_turn
from stored_plays import timeless_plays

from legos.arena.arena import Arena
from legos.config.league import LeagueConfig
from legos.config.schema import LoopConfig, TrainingConfig
from legos.credit import GRPOCredit, RAECredit
from legos.fakes import Asked, ScriptedClient
from legos.league.cast import Cast
from legos.league.matchmaker import LeagueSeats
from legos.loop.concurrency import EngineStats
from legos.loop.mix import Mix
from legos.loop.player import PlayGroup
from legos.loop.trainer import PolicyTrainer
from legos.play.step import play_each
from legos.play.table import Table
from legos.records.count import Count
from legos.records.episode import Episode, Task
from legos.records.names import POLICY
from legos.run.checkpoint import newest_whole, read_state
from legos.run.folder import RunFolder
from legos.run.run import Run
from legos.track.jsonl import JsonlTracker

STEPS = 6


class Duel(Arena):
    """Two seats; the higher digit wins. Every play's seed tells it apart."""

    roles = ("first", "second")
    tasks_per_step = 2
    group_size = 2
    fails = False

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for number in range(5):
            yield Task(id=f"t{number}", data=rng.random())

    async def play(self, t: Table) -> Mapping[str, float]:
        if self.fails:
            raise ValueError("no cards")
        first = await t.ask("first", f"{t.task.id} {t.task.data}")
        for _ in range(t.rng.randrange(4)):  # some plays are slow
            await asyncio.sleep(0)
        second = await t.ask("second", f"{t.task.id} after {first.answer}")
        gain = float(int(first.answer) - int(second.answer))
        return {"first": gain, "second": -gain}


class Match(Duel):
    """The same in more tasks; the adapter's number is the lowest digit that it answers."""

    tasks_per_step = 20

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for number in range(40):
            yield Task(id=f"t{number}", data=rng.random())


class Solo(Duel):
    """The same for one seat, in longer tasks."""

    roles = ("only",)
    tasks_per_step = 3
    group_size = 3

    async def play(self, t: Table) -> Mapping[str, float]:
        answers = [await t.ask("only", f"{t.task.id} turn {n}") for n in range(t.rng.randrange(4))]
        return {"only": float(sum(int(each.answer) for each in answers))}


class Evaluation:
    """Takes a few turns of the event loop and five tokens; one of them waits for ``go_on``."""

    count = Count(1)

    def __init__(self) -> None:
        self.tokens_generated = 0
        self.episodes: tuple[Episode, ...] = (
            make_episode({"only": 0.0}, turns={"only": (make_turn(token_ids=range(5)),)}),
        )
        self.done = 0
        self.go_on = asyncio.Event()
        self.waits_at = -1
        self.adapters: list[str] = []
        self.shares: Mapping[int, float | None] = {}  # by the number of the evaluation, from 1

    async def metrics(self, *, adapters: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.adapters.append((adapters or {}).get(POLICY, POLICY))
        if self.done == self.waits_at:
            await asyncio.wait_for(self.go_on.wait(), 3600)
        for _ in range(3):
            await asyncio.sleep(0)
        self.tokens_generated += 5
        self.done += 1
        share = self.shares.get(self.done, 0.5)
        others = {"vs_random": {"win": 0.25}, "exploitability": None}
        return {"arena": "duel", "share": share, **others}


class Inline(Executor):
    """Writes checkpoints at once, so that a run takes the same turns of the event loop again."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def step_settings(limit: int, *, samples: int = 10, tokens: int | None = None) -> TrainingConfig:
    """The settings of a step; their schedule shows which step an update belongs to."""
    return TrainingConfig(
        min_samples_per_step=samples,
        tokens_per_step=tokens,
        staleness_limit=limit,
        learning_rate=1.0,
        learning_rate_end_fraction=0.0,
    )


class World:
    """A run, and everything around it, in one process."""

    def __init__(
        self,
        path: Path,
        *,
        limit: int = 0,
        players: int = 1,
        writer: Executor | None = None,
        mixed: bool = False,
        opponents: Mapping[str, float] | None = None,
        league: LeagueConfig | None = None,
        play: PlayGroup = play_each,
        stats: EngineStats = dict,
        **settings: Any,
    ) -> None:
        self.folder = RunFolder(path)
        self.sampled = 0
        self.client = ScriptedClient(self._answer)
        kind = Duel if opponents is None else Match
        self.arena = kind(self.client, credit_assigner=RAECredit())
        if opponents:
            league = league or LeagueConfig()
            self.arena.matchmaker = LeagueSeats(
                opponents, Cast(self.arena), snapshots=league.snapshots, recent=league.recent
            )
        self.other = Solo(self.client, credit_assigner=GRPOCredit())
        halves: dict[Arena, float] = {self.arena: 0.5, self.other: 0.5}
        played = Mix(halves) if mixed else self.arena
        self.backend = FakeBackend()
        self.evaluation = Evaluation()
        self.publisher = FakePublisher()
        self.trainer = PolicyTrainer(
            self.backend,
            self.publisher,
            step_settings(limit, tokens=40 if mixed else None),
        )
        clock = settings.pop("clock", repeat(0.0))
        usual: dict[str, Any] = {
            "steps": STEPS,
            "checkpoint_every": 2,
            "evaluate_every": 3,
            "deterministic": True,
            "plays_kept": 0.5,
        }
        self.run = Run(
            self.folder,
            played,
            self.trainer,
            LoopConfig(step_concurrency=players, **{**usual, **settings}),
            episode_concurrency=8,
            evaluation=cast("Any", self.evaluation),
            count_tokens=self.count,
            engine_stats=stats,
            play=play,
            writer=writer or Inline(),
            league=league,
            clock=lambda: next(clock),
        )

    def _answer(self, asked: Asked) -> str:
        self.sampled += 2 * (asked.adapter == POLICY)  # a digit and the end
        self.client.version = self.trainer.version
        luck = asked.sampling.seed % 10
        if isinstance(self.arena, Match):
            live = self.publisher.live[asked.adapter]  # fails where a play's opponent was dropped
            return str(max(luck, min(int(live.arrays["mlp.lora_a"][0, 0]), 9)))
        return str(luck)

    async def count(self) -> int:
        return self.sampled + self.evaluation.tokens_generated

    def start(self) -> "World":
        with self.folder.new_run("# settings"):
            pass
        return self

    def resume(self) -> "World":
        self.run.resume(newest_whole(self.folder.checkpoints))
        return self

    def go(self, *, stop_after: int | None = None, tracker: JsonlTracker | None = None) -> bool:
        """Run to the end, or ask to stop after so many turns of the event loop."""

        async def stop(turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await self.run.stop()

        async def go(trackers: tuple[JsonlTracker, JsonlTracker]) -> bool:
            others = [] if stop_after is None else [asyncio.create_task(stop(stop_after))]
            try:
                return await asyncio.wait_for(self.run.go(*trackers), timeout=20)
            finally:
                for other in others:
                    other.cancel()
                left = asyncio.all_tasks() - {asyncio.current_task(), *others}
                assert not left, "a task was left waiting"

        with (
            closing(tracker or JsonlTracker(self.folder.metrics)) as metrics,
            closing(JsonlTracker(self.folder.evaluations)) as evaluations,
        ):
            return asyncio.run(go((metrics, evaluations)))

    @property
    def state(self) -> dict[str, Any]:
        return read_state(newest_whole(self.folder.checkpoints))


def stops(turns: range, mark: Any, *, every: int) -> list[Any]:
    """After how many turns of the event loop to stop a run; the nightly tests take all of them.

    Args:
        turns: from the start of the run to after its end, which the last of them must reach.
        mark: the mark of the stops that CI takes too.
        every: it takes one of so many, and the last.
    """
    often = {*turns[::every], turns[-1]}
    return [pytest.param(n, marks=mark if n in often else pytest.mark.nightly) for n in turns]


def episodes(folder: RunFolder) -> list[Any]:
    return timeless_plays(folder.episodes)


def check_balance(world: World) -> None:
    """Every token that was sampled is in the checkpoint's books, and they balance."""
    checked_ledger(world.state)
