"""A training run ends: three roles, free text, retries, and adapters loaded at any moment.

    uv run python -m tests.wiring.test_three_roles 200 --seed 0

makes 200 runs of two steps each and tells how many ended.
"""

import argparse
import asyncio
import logging
import random
import re
from collections.abc import Iterable, Mapping

import pytest

from legos import Arena, GRPOCredit, Task, Trainer, TrainingConfig, load_model, training_loop
from legos.play.table import Table
from legos.records.limits import EngineLimits

RUN_S = 300.0  # a run takes a few seconds; one that takes so long waits for ever
STEPS = 2


class ThreeRoles(Arena):
    """A proposer sets a sum, a solver answers, a critic says yes or no: all in free text."""

    roles = ("proposer", "solver", "critic")
    illegal = "retry"
    max_tokens = 8
    tasks_per_step = 3
    group_size = 2

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        while True:
            yield Task(id=f"{rng.getrandbits(40)}", data=rng.randrange(2))

    async def play(self, t: Table) -> Mapping[str, float]:
        rules = "Three sit at a table: one proposes a sum, one solves it, one says yes or no. " * 3
        sum_ = await t.ask("proposer", f"{rules}Propose a sum with {t.task.data}.", parse=word)
        said = await t.ask("solver", f"{rules}Solve {sum_.answer}.", parse=number)
        judged = await t.ask("critic", f"{rules}Is {said.answer} the answer to {sum_.answer}?")
        good = float(len(said.answer) % 3) + float("y" in judged.answer)
        return {"proposer": -good, "solver": good, "critic": good / 2}


def word(answer: str) -> str:
    if not answer.strip():
        raise ValueError("say something")
    return answer


def number(answer: str) -> str:
    if not re.search(r"\d", answer):
        raise ValueError("a number, please")
    return answer


async def run_once(seed: int) -> int:
    """Two steps; returns the steps that were made before the time was over."""
    rng = random.Random(seed)
    trainer = Trainer(
        model=load_model(),
        config=TrainingConfig(min_samples_per_step=12, staleness_limit=rng.choice((1, 3))),
        limits=EngineLimits(
            max_rows=rng.choice((8, 64, 256)),
            prefill_tokens=rng.choice((64, 4096)),
            chunk_tokens=rng.choice((32, 512)),
        ),
        seed=seed,
    )
    arena = ThreeRoles(trainer.client(), credit_assigner=GRPOCredit(), seed=seed)

    async def load_at_random() -> None:
        while True:
            await asyncio.sleep(rng.choice((0.002, 0.02, 0.1)))
            await trainer.publish_weights()

    try:
        async with asyncio.timeout(RUN_S):
            loads = asyncio.ensure_future(load_at_random())
            try:
                await training_loop(arena, trainer, STEPS, episode_concurrency=6, progress=False)
            finally:
                loads.cancel()
                await asyncio.gather(loads, return_exceptions=True)
    except TimeoutError:
        pass
    finally:
        trainer.close()
    return trainer.version


SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=SLOW if seed == 0 else NIGHTLY) for seed in range(5)]
)
def test_a_run_ends(seed: int) -> None:
    assert asyncio.run(run_once(seed)) == STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    ended = 0
    for index in range(arguments.runs):
        ended += asyncio.run(run_once(arguments.seed + index)) == STEPS
        print(f"{ended} of {index + 1} runs ended", flush=True)  # noqa: T201 - a script's result


if __name__ == "__main__":
    main()
