"""A run goes on through a judge that fails; plays that needed it fail alone and are counted."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import pytest
from fakes import FakeBackend, FakePublisher
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.arena.arena import Arena
from legos.clients.openai import OpenAIClient
from legos.config.schema import TrainingConfig
from legos.credit import GRPOCredit
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.loop.loop import training_loop
from legos.loop.trainer import PolicyTrainer
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.message import Message, Sampling


class Judged(Arena):
    """An outside judge, asked over HTTP, gives the reward."""

    tasks_per_step = 4
    group_size = 4

    def __init__(self, judge: OpenAIClient, trainer: PolicyTrainer) -> None:
        self._scripted = ScriptedClient(lambda asked: "ab")
        super().__init__(self._scripted, credit_assigner=GRPOCredit())
        self.judge = judge
        self._trainer = trainer

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield from (Task(id=f"t{n}") for n in range(1000))

    async def play(self, t: Table) -> Mapping[str, float]:
        self._scripted.version = self._trainer.version
        said = await t.ask("player", "?")
        verdict = await self.judge.complete((Message("user", said.text),), Sampling())
        return {"player": float(verdict.text)}


def trainer() -> PolicyTrainer:
    settings = TrainingConfig(min_samples_per_step=4, staleness_limit=1, learning_rate=1.0)
    return PolicyTrainer(FakeBackend(), FakePublisher(), settings)


def train(
    reply: Any, *, steps: int, timeout_s: float = 60.0
) -> tuple[PolicyTrainer, list[Mapping[str, Any]]]:
    made, seen = trainer(), list[Mapping[str, Any]]()

    async def after_step(metrics: Mapping[str, Any], batches: Any) -> None:
        seen.append(metrics)

    async def go(url: str) -> None:
        async with OpenAIClient(
            f"{url}/v1", dialect="openai", model="judge", retries=0, timeout_s=timeout_s
        ) as judge:
            arena = Judged(judge, made)
            await asyncio.wait_for(training_loop(arena, made, steps, after_step=after_step), 60)

    with serving(ScriptedServer(reply)) as url:
        asyncio.run(go(url))
    return made, seen


BROKEN = [
    HttpAnswer(b"", 500),
    HttpAnswer(b"bad gateway", 502),
    HttpAnswer(b"", 503),
    HttpAnswer(b"<html>"),
    HttpAnswer({"choices": []}),
    HttpAnswer(b'{"choices": [{"message": {"content": NaN}}]}'),
    HttpAnswer({"choices": [{"message": {"content": None}}]}),
    HttpAnswer(b'{"choices"', cut=True),
]


def test_a_run_goes_on_through_a_judge_that_fails_half_of_its_calls() -> None:
    calls = count()

    def reply(asked: HttpAsked) -> HttpAnswer:
        number = next(calls)
        if number % 2:
            return BROKEN[number // 2 % len(BROKEN)]
        return HttpAnswer({"choices": [{"message": {"content": str(number // 2 % 3)}}]})

    made, seen = train(reply, steps=4)
    assert made.step == 4
    for metrics in seen:
        assert metrics["arena/endpoint_failed"] == metrics["arena/failed"]
        assert 4.0 <= metrics["arena/failed"] <= 12.0  # about half of 16, of two batches at once
    assert made.ledger.discarded["endpoint"] > 0
    made.ledger.check(queued=0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "endpoint"),  # the client waits until its time limit
        (HttpAnswer({"choices": [{"message": {"content": "NaN"}}]}), "failed"),
        (HttpAnswer({"choices": [{"message": {"content": "no number"}}]}), "failed"),
    ],
)
def test_a_run_goes_on_without_the_plays_whose_judge_gave_no_score(
    answer: HttpAnswer | None, kind: str
) -> None:
    calls = count()

    def reply(asked: HttpAsked) -> HttpAnswer | None:
        number = next(calls)
        if number % 4 == 3:
            return answer
        return HttpAnswer({"choices": [{"message": {"content": str(number % 3)}}]})

    made, seen = train(reply, steps=2, timeout_s=60.0 if answer else 2.0)
    assert made.step == 2
    assert sum(metrics["arena/failed"] for metrics in seen) > 0
    for metrics in seen:
        of_endpoint = metrics["arena/failed"] if kind == "endpoint" else 0.0
        assert metrics["arena/endpoint_failed"] == of_endpoint
    assert made.ledger.discarded[kind] > 0
    made.ledger.check(queued=0)


def test_a_judge_that_never_answers_ends_the_run_with_the_reason() -> None:
    with pytest.raises(ArenaError, match=r"(?s)160 of the last 160 plays failed.*out of money"):
        train(lambda asked: HttpAnswer({"error": {"message": "out of money"}}, 500), steps=4)
