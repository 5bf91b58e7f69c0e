"""Groups flow: a slow play delays nobody else's group, and an arena's own bug ends the run."""

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NoReturn

import pytest
from fakes import FakeBackend, FakePublisher
from msgspec import structs
from virtual_time import in_virtual_time

from legos.arena.arena import Arena
from legos.arena.endings import Forfeit
from legos.config.schema import TrainingConfig
from legos.credit import GRPOCredit, RAECredit
from legos.errors import ArenaError, EngineError, Stopped, TrainerError
from legos.fakes import ScriptedClient
from legos.loop.concurrency import ConcurrencyLimit
from legos.loop.loop import batcher_of, synchronous_training_loop, training_loop
from legos.loop.mix import Mix, mix_of
from legos.loop.player import Player
from legos.loop.trainer import PolicyTrainer
from legos.play.table import Table
from legos.protocols import CreditAssigner
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.sample import Sample

FAST_S, SLOW_S = 0.01, 5.0


class Waits(Arena):
    """Plays that last; ``slow`` says for which numbers a play lasts 500 times as long."""

    tasks_per_step = 8
    group_size = 8
    play_timeout_s = None

    def __init__(
        self, trainer: PolicyTrainer, slow: Sequence[int], credit: CreditAssigner | None = None
    ) -> None:
        self._scripted = ScriptedClient(lambda asked: "ab")
        super().__init__(self._scripted, credit_assigner=credit or GRPOCredit())
        self._trainer = trainer
        self._slow = slow
        self._number = 0

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield from (Task(id=f"t{n}") for n in range(100_000))

    async def play(self, t: Table) -> Mapping[str, float]:
        number, self._number = self._number, self._number + 1
        self._scripted.version = self._trainer.version
        await t.ask("player", "?")
        await asyncio.sleep(SLOW_S if number in self._slow else FAST_S)
        return {"player": t.rng.random()}


def trainer(limit: int = 2) -> PolicyTrainer:
    settings = TrainingConfig(min_samples_per_step=64, staleness_limit=limit, learning_rate=1.0)
    return PolicyTrainer(FakeBackend(), FakePublisher(), settings)


def seconds(slow: Sequence[int], *, steps: int, step_concurrency: int) -> float:
    """How long 64 plays at once take for so many optimiser steps."""
    made = trainer()
    arena = Waits(made, slow)
    story = training_loop(
        arena,
        made,
        steps,
        episode_concurrency=64 // step_concurrency,
        step_concurrency=step_concurrency,
        progress=False,
    )
    _, took = in_virtual_time(story)
    made.ledger.check(queued=0)
    assert made.step == steps
    return took


@pytest.mark.parametrize("step_concurrency", [1, 2])
def test_a_slow_play_does_not_delay_the_groups_of_others(step_concurrency: int) -> None:
    without = seconds((), steps=40, step_concurrency=step_concurrency)
    with_one = seconds((5,), steps=40, step_concurrency=step_concurrency)
    assert with_one < SLOW_S / 5
    assert without / with_one >= 0.9


def test_a_group_enters_when_its_last_play_ends() -> None:
    made, arrivals = trainer(limit=50), list[tuple[float, list[str]]]()

    async def after_step(_: Any, batches: Sequence[Group]) -> None:
        groups = [batch.episodes[0].task.id for batch in batches]
        assert all(len(batch.episodes) == 8 for batch in batches)
        arrivals.append((asyncio.get_running_loop().time(), groups))

    arena = Waits(made, (8,))  # the first play of task t1
    story = training_loop(
        arena, made, 2, episode_concurrency=64, after_step=after_step, progress=False
    )
    in_virtual_time(story)
    (first, early), (_, late) = arrivals
    assert first < 0.1
    assert "t1" not in early + late
    # What was cut off when the loop ended is the next to be played.
    assert arena.cursor.next_group("id").plays[0][0].id == "t1"


def test_a_group_that_ended_is_not_lost_where_the_engine_has_died() -> None:
    def dead() -> Mapping[str, float]:
        raise EngineError("the engine was closed, or its thread has died")

    made = trainer()
    arena = Waits(made, ())
    batcher = batcher_of(made, mix_of(arena))
    story = training_loop(arena, made, 1, batcher=batcher, stats=dead, progress=False)
    with pytest.raises(EngineError, match="has died"):
        in_virtual_time(story)
    waiting = [g.episodes[0].task.id for g in batcher.queued[arena.name]]
    next_ones = [arena.cursor.next_group("id").plays[0][0].id for _ in range(8)]
    assert waiting
    assert {f"t{n}" for n in range(8)} <= {*waiting, *next_ones}


def test_no_table_is_begun_where_the_adapter_cannot_be_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(_: object) -> None:
        raise EngineError("the server is not there")

    made, begun = trainer(), list[object]()
    monkeypatch.setattr(made, "publish_to", fails)
    monkeypatch.setattr("legos.loop.loop.ConsoleTracker", lambda **named: begun.append(named))
    with pytest.raises(EngineError, match="is not there"):
        in_virtual_time(training_loop(Waits(made, ()), made, 1))
    assert begun == []


def test_a_trainer_can_train_on_after_its_loop_was_cancelled() -> None:
    made = trainer()
    arena = Waits(made, ())

    async def story() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.055):  # a step, and two groups for the next one
                await training_loop(arena, made, 1000, progress=False)
        assert made.ledger.discarded["unused"] > 0
        await training_loop(arena, made, made.step + 2, progress=False)

    in_virtual_time(story())
    made.ledger.check(queued=0)


def test_the_groups_of_a_step_that_failed_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> NoReturn:
        raise TrainerError("out of memory")

    made = trainer()
    monkeypatch.setattr(made.backend, "forward_backward", fails)
    with pytest.raises(TrainerError, match="out of memory"):
        in_virtual_time(synchronous_training_loop(Waits(made, ()), made, 1, progress=False))
    assert made.ledger.discarded["unused"] > 0
    made.ledger.check(queued=0)


def test_a_group_that_waits_for_admission_is_not_counted_as_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def ended(self: ConcurrencyLimit, now: float, *, playing: int, starved: bool) -> None:
        seen.append(playing)

    monkeypatch.setattr(ConcurrencyLimit, "group_ended", ended)
    made = trainer()
    in_virtual_time(synchronous_training_loop(Waits(made, ()), made, 2, progress=False))
    assert seen == [64, 64]  # of the step's only group


def test_a_rule_that_needs_the_step_gets_the_plays_of_all_its_tasks() -> None:
    made, sizes = trainer(), list[list[int]]()

    async def after_step(_: Any, batches: Sequence[Group]) -> None:
        sizes.append([len(batch.episodes) for batch in batches])

    arena = Waits(made, (), RAECredit())
    story = training_loop(arena, made, 3, after_step=after_step, progress=False)
    in_virtual_time(story)
    assert sizes == [[64]] * 3


@pytest.mark.parametrize("returned", [None, {"player": "1"}, {"referee": 1.0}])
def test_a_breach_of_the_rules_for_plays_ends_the_run_though_most_plays_forfeit(
    returned: Any,
) -> None:
    class Mostly(Waits):
        async def play(self, t: Table) -> Mapping[str, float]:
            await t.ask("player", "?")
            if t.rng.random() < 0.9:
                raise Forfeit("player")
            return returned

    made = trainer()
    with pytest.raises(ArenaError, match=r"play\(\) of arena 'mostly'") as raised:
        asyncio.run(training_loop(Mostly(made, ()), made, 1000, progress=False))
    assert "of arena 'mostly'" in raised.value.__notes__[0]
    assert made.step < 20


def test_in_turns_each_arena_plays_its_share_of_a_step_and_not_a_whole_round() -> None:
    class Others(Waits):
        tasks_per_step = 64

    settings = TrainingConfig(tokens_per_step=96, staleness_limit=0, learning_rate=1.0)
    made = PolicyTrainer(FakeBackend(), FakePublisher(), settings)
    tokens: list[dict[str, int]] = []

    async def after_step(_: Any, groups: Sequence[Group]) -> None:
        names = ("waits", "others")
        step = {n: sum(g.num_tokens for g in groups if g.arena == n) for n in names}
        assert max(len(group.plays) for group in groups) < 64  # a round has 64 and 512
        tokens.append(step)

    mix = Mix({Waits(made, ()): 0.5, Others(made, ()): 0.5})
    in_virtual_time(training_loop(mix, made, 6, after_step=after_step, progress=False))
    assert all(0 < share <= 96 for step in tokens for share in step.values())
    made.ledger.check(queued=0)


def test_a_group_that_waits_for_its_references_is_in_a_checkpoint() -> None:
    made = trainer(limit=0)
    made.num_steps = 1
    asked: list[tuple[Sequence[Sample], Future[list[Sample]]]] = []

    def references(samples: Sequence[Sample]) -> Future[list[Sample]]:
        asked.append((samples, Future()))
        return asked[-1][1]

    arena = Waits(made, ())
    batcher = batcher_of(made, mix_of(arena), staleness_limit=0)
    player = Player(
        arena, batcher, episode_concurrency=64, step_concurrency=1, references=references
    )

    async def story() -> None:
        playing = asyncio.create_task(player.run())
        await asyncio.sleep(1)
        ((samples, scored),) = asked
        assert batcher.starved  # it cannot be trained on yet
        (later,) = arena.cursor.state()["unfinished"]
        assert [position for _, _, position, _ in later] == [*range(8, 16)]
        state = json.loads(json.dumps(batcher.state()))
        (group,) = batcher.queued["waits"]
        assert group.samples == samples
        made.ledger.check(queued=batcher.num_tokens)

        again = batcher_of(made, mix_of(arena), staleness_limit=0)
        again.restore(state, {"waits": [group]}, versions=made.versions)
        assert await again.take(made.versions) == [group]

        filled = [
            structs.replace(one, reference_logprobs=(-1.0,) * len(one.positions)) for one in samples
        ]
        scored.set_result(filled)
        (taken,) = await batcher.take(made.versions)
        assert list(taken.samples) == filled
        await batcher.end(Stopped())
        await playing

    in_virtual_time(story())


def test_a_group_whose_references_do_not_come_stays_in_the_buffer() -> None:
    made = trainer()

    def references(samples: Sequence[Sample]) -> Future[list[Sample]]:
        refused: Future[list[Sample]] = Future()
        refused.set_exception(EngineError("no server of training.kl_server"))
        return refused

    made.references = references
    arena = Waits(made, ())
    batcher = batcher_of(made, mix_of(arena))
    story = training_loop(arena, made, 3, batcher=batcher, progress=False)
    with pytest.raises(EngineError, match="no server of"):
        in_virtual_time(story)
    assert batcher.queued["waits"]
    made.ledger.check(queued=batcher.num_tokens)
    batcher.discard_rest()
    made.ledger.check(queued=0)
