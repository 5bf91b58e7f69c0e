"""An arena of a mix may have an entropy bonus of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from legos.fakes import FakeBackend, FakePublisher, make_sample
from legos.loop.trainer import PolicyTrainer, StepSettings
from legos.losses.objective import Objective
from legos.records.sample import Sample, TrainingBatch
from legos.records.shares import Portion
from legos.records.step import PassResult, Update


class Recorder(FakeBackend):
    """Keeps the coefficient of each pass, and what each sample gets of it."""

    def __init__(self) -> None:
        super().__init__()
        self.coefs: list[dict[str, float]] = []

    def forward_backward(
        self,
        samples: Sequence[Sample],
        weights: Sequence[float],
        objective: Objective,
        **options: Any,
    ) -> "Future[PassResult]":
        self.coefs.append({s.group: objective.entropy_coef * s.entropy_scale for s in samples})
        return super().forward_backward(samples, weights, objective, **options)


def trained(portions: Mapping[str, Portion], usual: float) -> list[dict[str, float]]:
    """What the samples of each arena get in two steps of a run of two."""
    settings = StepSettings(
        min_samples=1,
        staleness_limit=0,
        normalisation="token",
        objective=lambda step, num_steps: Objective(entropy_coef=usual),
        update=lambda step, num_steps: Update(learning_rate=1.0),
    )
    backend = Recorder()
    trainer = PolicyTrainer(backend, FakePublisher(), settings)
    trainer.portions, trainer.num_steps = portions, 2
    batches = [
        TrainingBatch(
            samples=(make_sample((1, 2, 3), group=name),),
            episodes=(),
            tokens_generated=1,
            arena=name,
        )
        for name in portions
    ]

    async def steps() -> None:
        for _ in range(2):
            trainer.ledger.generated += len(batches)
            await trainer.train(batches, queued=lambda: 0)

    asyncio.run(steps())
    assert {s.entropy_scale for batch in batches for s in batch.samples} == {1.0}  # not changed
    return backend.coefs


def test_each_arena_follows_its_own_schedule_and_the_others_that_of_the_run() -> None:
    portions = {
        "nim": Portion(0.4, entropy_coef=0.4, entropy_coef_end=0.2),
        "kuhn": Portion(0.4, entropy_coef=0.1, entropy_coef_end=0.1),
        "pig": Portion(0.2),
    }
    first, second = trained(portions, usual=0.05)
    assert first == pytest.approx({"nim": 0.4, "kuhn": 0.1, "pig": 0.05})
    assert second == pytest.approx({"nim": 0.3, "kuhn": 0.1, "pig": 0.05})


def test_without_any_of_its_own_nothing_is_scaled() -> None:
    halves = {"nim": Portion(0.5), "kuhn": Portion(0.5)}
    assert trained(halves, usual=0.3)[0] == {"nim": 0.3, "kuhn": 0.3}
    none = {"nim": Portion(0.5, entropy_coef=0.0), "kuhn": Portion(0.5)}
    assert trained(none, usual=0.0)[0] == {"nim": 0.0, "kuhn": 0.0}
    assert trained(none, usual=0.2)[0] == {"nim": 0.0, "kuhn": 0.2}
