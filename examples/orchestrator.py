"""Three arenas in one run: each with a buffer and a budget of its own, one trainer for all.

    uv run python examples/orchestrator.py

Two CPU cores, about a minute. Every few steps the program prints what waits in each buffer, what
the arena is owed, and what the step took of it; at the end the tokens and the figures of each.

    nim    half of the tokens at first, a fifth at the end; any group that waits may be next
    kuhn   a quarter, and more and more; the newest groups first, an entropy bonus of its own
    sums   a quarter, although it is slow: each play waits for a tool, so groups train two steps
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from legos import (
    Arena,
    GRPOCredit,
    Mix,
    Portion,
    Table,
    Task,
    Trainer,
    TrainingConfig,
    evaluate,
    load_model,
    make_arena,
    training_loop,
)
from legos.data.sample import TrainingBatch

TOOL_S = 0.3
SHOWN = 10  # steps between two tables


class Sums(Arena):
    """The sum of two small numbers, which a slow tool checks."""

    tasks_per_step, group_size, restrict_choices = 16, 4, True

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Two numbers each."""
        while True:
            pair = rng.randint(0, 3), rng.randint(0, 3)
            yield Task(id=f"{pair[0]}+{pair[1]}", data=pair)

    async def play(self, t: Table) -> Mapping[str, float]:
        """One answer."""
        left, right = t.task.data
        digits = tuple(str(digit) for digit in range(1, 7))
        reply = await t.ask(
            "player", f"{left} + {right} = ?\nMoves: {' '.join(digits)}", choices=digits
        )
        await asyncio.sleep(TOOL_S)
        return {"player": float(reply.move == str(left + right))}


def table(metrics: Mapping[str, Any], names: Iterable[str]) -> None:
    """One line for each arena."""
    print(f"step {metrics['step']}: rollouts waiting, on policy, tokens owed, share of step")
    for name in names:
        waiting = {key: metrics.get(f"replays/{name}/{key}", 0.0) for key in BUFFER}
        share = metrics.get(f"batches/{name}/token_share", 0.0)
        print(f"  {name:5}", *(f"{value:8.2f}" for value in waiting.values()), f"{share:8.0%}")


BUFFER = ("rollouts", "on_policy_share", "deficit_tokens")


async def main(steps: int) -> None:
    """Train on all, and print what each got and what was learned."""
    config = TrainingConfig(learning_rate=3e-3, kl_coef=0.0, staleness_limit=2, entropy_coef=0.2)
    trainer = Trainer(model=load_model("builtin"), config=config)
    client = trainer.client()
    nim, kuhn = (make_arena(name, client) for name in ("nim", "kuhn"))
    sums = Sums(client, credit_assigner=GRPOCredit())
    mix = Mix(
        {
            nim: Portion(0.5, share_end=0.2, order="uniform"),
            kuhn: Portion(0.25, share_end=0.55, order="newest", entropy_coef=0.1),
            sums: Portion(0.25, reuse=2, min_group_size=4, concurrency=64),
        },
        tokens_per_step=1024,
        spill="lend",  # a step does not wait for the tool; what was lent is paid back
    )
    tokens = Counter[str]()

    async def after_step(metrics: Mapping[str, Any], batches: Sequence[TrainingBatch]) -> None:
        for batch in batches:
            tokens[batch.arena] += sum(len(sample.positions) for sample in batch.samples)
        if metrics["step"] % SHOWN == 0:
            table(metrics, mix.arenas)

    await training_loop(
        mix, trainer, steps, episode_concurrency=256, after_step=after_step, progress=False
    )
    for arena in (nim, kuhn, sums):
        share = tokens[arena.name] / tokens.total()
        figures = await evaluate(arena, trainer)
        kept = {key: value for key, value in figures.items() if value and key in FIGURES}
        print(f"{arena.name}: {tokens[arena.name]} tokens, {share:.2f} of all; {kept}")
    trainer.close()


FIGURES = ("optimal_move_rate", "exploitability", "reward_mean")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    asyncio.run(main(parser.parse_args().steps))
