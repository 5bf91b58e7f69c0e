"""Groups without advantage make room for more play; a run without any signal says so and ends."""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeBackend, FakePublisher
from one_buffer import GAME, alone

from legos.arena.arena import Arena
from legos.config.schema import TrainingConfig
from legos.credit import GRPOCredit
from legos.errors import TrainerError
from legos.fakes import ScriptedClient, make_sample
from legos.loop.ledger import Ledger
from legos.loop.loop import batcher_of, synchronous_training_loop, training_loop
from legos.loop.mix import mix_of
from legos.loop.select import Selection
from legos.loop.trainer import PolicyTrainer
from legos.losses.objective import Objective
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.records.step import PassResult


class Coin(Arena):
    """Every ``rare``-th task has plays of different rewards; the others are all alike."""

    tasks_per_step = 3
    group_size = 2

    def __init__(self, rare: int, trainer: PolicyTrainer) -> None:
        self._scripted = ScriptedClient(lambda asked: "x")
        super().__init__(self._scripted, credit_assigner=GRPOCredit())
        self._rare = rare
        self._trainer = trainer
        self._number = 0

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield from (Task(id=f"t{n}", data=n) for n in range(60))

    async def play(self, t: Table) -> Mapping[str, float]:
        self._number += 1
        number = self._number
        self._scripted.version = self._trainer.version
        await t.ask("player", "?")
        live = bool(self._rare) and t.task.data % self._rare == 0
        return {"player": float(number % 2) if live else 1.0}


def trainer(limit: int = 0, *, select: Selection | None = None) -> PolicyTrainer:
    settings = TrainingConfig(min_samples_per_step=4, staleness_limit=limit, learning_rate=1.0)
    select = select or Selection(zero_advantage=True)
    return PolicyTrainer(FakeBackend(), FakePublisher(), settings, select=select)


@pytest.mark.parametrize("limit", [0, 2])
def test_a_step_waits_until_enough_groups_have_an_advantage(limit: int) -> None:
    trained = trainer(limit)
    seen: list[Mapping[str, Any]] = []

    async def after_step(metrics: Mapping[str, Any], batches: Any) -> None:
        seen.append(metrics)

    async def go() -> None:
        await training_loop(Coin(5, trained), trained, 4, step_concurrency=2, after_step=after_step)

    asyncio.run(asyncio.wait_for(go(), timeout=60))
    backend: Any = trained.backend
    for samples, _, _ in backend.steps:
        assert len(samples) >= 4
        assert all(abs(advantage) > 0.1 for s in samples for advantage in s.advantages)
    assert [metrics["zero_advantage_share"] for metrics in seen] == [0.0] * 4
    assert trained.ledger.filtered["zero_advantage"] > 3 * trained.ledger.trained
    trained.ledger.check(queued=0)
    # The curve of rewards is that of all plays, those left out included.
    assert all(0.8 <= metrics["reward_mean"] < 1.0 for metrics in seen)


@pytest.mark.parametrize("loop", [training_loop, synchronous_training_loop])
def test_a_script_sees_each_step_unless_it_asks_for_silence(
    loop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = trainer()
    asyncio.run(loop(Coin(5, trained), trained, 12))
    shown = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["step 1/12", "step 10/12", "step 12/12"]
    asyncio.run(loop(Coin(5, trained), trained, 13, progress=False))
    assert capsys.readouterr().out == ""


def test_a_run_without_any_signal_ends_with_the_reason() -> None:
    trained = trainer()
    go = synchronous_training_loop(Coin(0, trained), trained, 1)
    with pytest.raises(
        TrainerError, match=r"the plays of 10 steps in a row.*'zero_advantage': 120.*solved"
    ):
        asyncio.run(asyncio.wait_for(go, timeout=60))


def batch(*samples: Any) -> Group:
    tokens = sum(len(sample.positions) for sample in samples)
    return Group(arena=GAME, samples=samples, tokens_generated=tokens)


LIVE = make_sample((1, 2, 3), positions=(1, 2), group="live")
DEAD = make_sample((1, 2), advantages=0.0, group="dead")


def test_a_batch_without_samples_goes_along_for_its_metrics() -> None:
    async def go() -> list[Group]:
        select = Selection(overlong=False, zero_advantage=True)
        batcher = alone(Ledger(), min_samples=1, staleness_limit=0, select=select)
        for samples in ((DEAD,), (LIVE,)):
            await batcher.admit(batch())
            await batcher.put(batch(*samples))
        return await batcher.take({POLICY: 0})

    assert [taken.samples for taken in asyncio.run(go())] == [(), (LIVE,)]


def test_a_single_step_leaves_out_the_same() -> None:
    trained = trainer()
    assert trained.train_step(batch(LIVE, DEAD))["tokens_trained"] == 2
    assert trained.ledger.filtered == {"zero_advantage": 1}
    with pytest.raises(TrainerError, match=r"no sample to train on.*'zero_advantage': 1"):
        trained.train_step(batch(DEAD))


def test_a_single_step_leaves_out_what_a_later_policy_has_sampled() -> None:
    trained = trainer()
    later = make_sample((1, 2, 3), positions=(1, 2), versions=(0, 1), group="live")
    metrics = trained.train_step(batch(LIVE, later))
    assert (metrics["tokens_trained"], metrics["filtered/future_tokens"]) == (2, 2)
    assert metrics["staleness_max"] == 0
    metrics = trained.train_step(batch(later))  # sampled by the live version now
    assert (metrics["tokens_trained"], metrics["filtered/future_tokens"]) == (4, 2)


def test_tokens_of_another_tokenizer_are_filtered_by_name() -> None:
    select = Selection(overlong=False, zero_advantage=False, num_vocabulary=10)
    trained = trainer(select=select)
    told = [make_sample((1, 2), legal=(legal,)) for legal in ((2, 10), (2, -5))]
    foreign = [make_sample((1, 10)), make_sample((10, 1)), make_sample((-1, 2)), *told]
    metrics = trained.train_step(batch(LIVE, *foreign))
    assert (metrics["tokens_trained"], metrics["filtered/foreign_tokens_tokens"]) == (2, 5)
    with pytest.raises(TrainerError, match="of another tokenizer"):
        trained.train_step(batch(foreign[0]))
    assert trained.train_step(batch(LIVE))["tokens_generated"] == 9  # nothing of it was booked


def test_a_batch_of_another_tokenizer_makes_the_step_wait_and_not_fail() -> None:
    async def go() -> tuple[list[Group], Ledger]:
        select = Selection(overlong=False, zero_advantage=False, num_vocabulary=10)
        ledger = Ledger()
        batcher = alone(ledger, min_samples=1, staleness_limit=0, select=select)
        for samples in ((make_sample((1, 10)),), (LIVE,)):
            await batcher.admit(batch())
            await batcher.put(batch(*samples))
        return await batcher.take({POLICY: 0}), ledger

    taken, ledger = asyncio.run(go())
    assert [each.samples for each in taken] == [(), (LIVE,)]
    assert ledger.filtered == {"foreign_tokens": 1}


class Failing(FakeBackend):
    """Has no memory for any step."""

    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        **_: Any,
    ) -> "Future[PassResult]":
        raise TrainerError("no memory")


@pytest.mark.parametrize("limit", [0, 2])
def test_what_a_failed_step_was_made_of_waits_again(limit: int) -> None:
    trained = trainer(limit)
    trained.backend = Failing()
    coin = Coin(5, trained)
    batcher = batcher_of(trained, mix_of(coin))
    with pytest.raises(TrainerError, match="no memory"):
        asyncio.run(training_loop(coin, trained, 4, batcher=batcher))
    assert batcher.num_tokens >= 4
    trained.ledger.check(queued=batcher.num_tokens)
    with pytest.raises(TrainerError, match="no memory"):
        trained.train_step(batch(LIVE))
    trained.ledger.check(queued=batcher.num_tokens)


def test_a_step_that_is_interrupted_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[PassResult]):
        def result(self, timeout: float | None = None) -> PassResult:
            raise KeyboardInterrupt

    trained = trainer()
    with monkeypatch.context() as patched:
        patched.setattr(FakeBackend, "forward_backward", lambda *_, **__: Interrupted())
        with pytest.raises(KeyboardInterrupt):
            trained.train_step(batch(LIVE, DEAD))
    assert trained.train_step(batch(LIVE))["tokens_generated"] == 2


class Narrow(FakeBackend):
    """Has no room for samples with more than two tokens before a chosen one."""

    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        **_: Any,
    ) -> "Future[PassResult]":
        result = super().forward_backward(samples, weights, objective).result()
        future: Future[PassResult] = Future()
        future.set_result(replace(result, row_limit=2, peak_bytes=3 << 29, pass_s=0.5))
        return future


def test_samples_that_the_backend_had_no_room_for_are_filtered_by_name() -> None:
    long = make_sample((1, 2, 3, 4), positions=(1, 3))
    trained = PolicyTrainer(Narrow(), FakePublisher(), trainer().settings)
    metrics = trained.train_step(batch(LIVE, long))
    assert (metrics["tokens_trained"], metrics["filtered/too_long_tokens"]) == (2, 2)
    assert (metrics["memory/peak_gib"], metrics["loop/pass_max_s"]) == (1.5, 0.5)
    backend: Any = trained.backend
    backend.left_out = ["clip_skip"]
    metrics = trained.train_step(batch(LIVE, long))
    assert metrics["tokens_trained"] == 2
    assert metrics["filtered/clip_skip_tokens"] == 2
    assert metrics["filtered/too_long_tokens"] == 4


def test_a_warning_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    trained = trainer(select=Selection(overlong=False, zero_advantage=False))
    cut = make_sample((1, 2, 3), positions=(1, 2), truncated=True)
    with caplog.at_level(logging.WARNING):
        for samples in ((cut, LIVE), (LIVE,), (cut, LIVE)):
            trained.train_step(batch(*samples))
    told = [record.message for record in caplog.records if "truncation_share" in record.message]
    assert told == [m for m in told if m.startswith("step 1: truncation_share is 0.5")]
    assert len(told) == 1


def test_an_alarm_is_logged_when_it_starts_and_not_at_every_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained = trainer()
    cut = make_sample((1, 2, 3), positions=(1, 2), truncated=True)
    with caplog.at_level(logging.WARNING):
        for samples in ((cut,), (cut,), (LIVE,), (cut,)):
            metrics = trained.train_step(batch(*samples))
    assert metrics["truncation_share"] == 1.0
    told = [(r.levelname, r.message) for r in caplog.records if "truncation_share" in r.message]
    assert [level for level, _ in told] == ["ERROR", "ERROR"]
    assert [message.split(":")[0] for _, message in told] == ["step 1", "step 4"]
