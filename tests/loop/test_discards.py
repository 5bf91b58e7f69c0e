"""Almost no token is too old, whatever limits the line: play or training."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from fakes import FakeBackend, FakePublisher
from virtual_time import in_virtual_time

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.config.schema import TrainingConfig
from legos.credit import GRPOCredit
from legos.fakes import Asked, ScriptedClient
from legos.loop.loop import training_loop
from legos.loop.mix import Mix
from legos.loop.trainer import PolicyTrainer
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.records.step import PassResult

MOVE_S = 0.01
STEPS, WARM = 24, 5  # the first steps are larger: nobody knows the length of a play yet


class RandomMoves(ScriptedClient):
    """A client whose moves take 8 to 12 ms and are of the policy that is live when they end."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        super().__init__(self._move)
        self._trainer = trainer
        self._rng = random.Random(1)

    def _move(self, asked: Asked) -> str:
        return self._rng.choice(asked.sampling.choices)

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        self.asked.clear()
        await asyncio.sleep(MOVE_S * self._rng.uniform(0.8, 1.2))
        self.version = self._trainer.step
        return await super().complete(prompt, sampling, adapter=adapter)


class SlowBackend(FakeBackend):
    """A backend whose passes take some time for each chosen token, and which records nothing."""

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self._token_s = token_s

    def forward_backward(
        self, samples: Sequence[Sample], *args: Any, **options: Any
    ) -> "Future[PassResult]":
        result = super().forward_backward(samples, *args, **options).result()
        self.steps.clear()
        later: Future[PassResult] = Future()
        pass_s = self._token_s * sum(len(sample.positions) for sample in samples)
        asyncio.get_running_loop().call_later(pass_s, later.set_result, result)
        return later


@pytest.mark.nightly
@pytest.mark.parametrize("pass_s", [0.03, 0.2], ids=["play limits", "training limits"])
@pytest.mark.parametrize("games", [(Nim,), (Nim, Kuhn)], ids=["nim", "nim and kuhn"])
def test_almost_no_token_is_too_old(games: tuple[type, ...], pass_s: float) -> None:
    tokens = 1440 if len(games) == 1 else 2048
    settings = TrainingConfig(min_samples_per_step=256, staleness_limit=1, learning_rate=1.0)
    backend = SlowBackend(pass_s / tokens)
    trainer = PolicyTrainer(backend, FakePublisher(), settings)
    client = RandomMoves(trainer)
    arenas = [GameArena(game(), client, credit_assigner=GRPOCredit()) for game in games]
    mix = Mix(dict.fromkeys(arenas, 1 / len(arenas)))
    seen: list[tuple[int, int]] = []
    trained = Counter[str]()

    async def after(metrics: Any, batches: Any) -> None:
        ledger = trainer.ledger
        seen.append((ledger.generated, ledger.filtered["stale"]))
        for batch in batches:
            trained[batch.arena] += sum(len(sample.positions) for sample in batch.samples)

    loop = training_loop(
        mix,
        trainer,
        STEPS,
        episode_concurrency=256,
        step_concurrency=2,
        after_step=after,
        progress=False,
    )
    in_virtual_time(loop)
    (generated, stale), (all_generated, all_stale) = seen[WARM], seen[-1]
    assert (all_stale - stale) / (all_generated - generated) <= 0.02
    shares = [number / trained.total() for number in trained.values()]
    assert shares == pytest.approx([1 / len(games)] * len(games), abs=0.01)
