"""Three arenas in one run: each with a buffer and a share of the tokens, one trainer for all.

    uv run python examples/orchestrator.py

Two CPU cores, about a minute. Every few steps the program prints what waits in each buffer and what
the step took of it; at the end the tokens and the figures of each. The reward of sums rises from
below 0.3 to 0.7, the exploitability of kuhn falls from 0.46 to 0.33, and nim would need more steps.

    nim    half of the tokens
    kuhn   a quarter
    sums   a quarter, although it is slow: each play waits for a tool, and meanwhile the other two
           fill the steps, which sums gets back later
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import legos

BUFFER = ("rollouts", "tokens", "deficit_tokens")
FIGURES = ("optimal_move_rate", "exploitability", "reward_mean")


class Sums(legos.Arena):
    """The sum of two small numbers, which a slow tool checks."""

    tasks_per_step, group_size, restrict_choices = 16, 4, True

    def tasks(self, rng: random.Random) -> Iterable[legos.Task]:
        """Two numbers each."""
        while True:
            pair = rng.randint(0, 3), rng.randint(0, 3)
            yield legos.Task(id=f"{pair[0]} + {pair[1]}", data=pair)

    async def play(self, t: legos.Table) -> Mapping[str, float]:
        """One answer."""
        reply = await t.ask("player", f"{t.task.id} = ?", choices=tuple("0123456"))
        await asyncio.sleep(0.3)  # the tool
        return {"player": float(reply.move == str(sum(t.task.data)))}


async def main(steps: int) -> None:
    """Train on all, and print what each got and what was learned."""
    config = legos.TrainingConfig(
        learning_rate=3e-3, warmup_steps=10, staleness_limit=2, entropy_coef=0.2
    )
    config = config.replace(tokens_per_step=1024, spill="borrow")  # no step waits for the tool
    trainer = legos.Trainer(model=legos.load_model("builtin"), config=config)
    nim, kuhn = (legos.make_arena(name, trainer.client()) for name in ("nim", "kuhn"))
    sums = Sums(trainer.client(), credit_assigner=legos.GRPOCredit())
    mix = legos.Mix({nim: 0.5, kuhn: 0.25, sums: 0.25})
    tokens = Counter[str]()

    async def after_step(metrics: Mapping[str, Any], groups: Iterable[Any]) -> None:
        for group in groups:
            tokens[group.arena] += group.num_tokens
        for name in mix.arenas if metrics["step"] % 10 == 0 else ():
            waits = (f"{key} {metrics[f'replays/{name}/{key}']:.0f}" for key in BUFFER)
            share = metrics.get(f"batches/{name}/token_share", 0.0)
            print(f"step {metrics['step']}: {name} gave {share:.0%}; waiting: {', '.join(waits)}")

    await legos.training_loop(mix, trainer, steps, episode_concurrency=256, after_step=after_step)
    for name, arena in mix.arenas.items():
        figures = await legos.evaluate(arena, trainer)
        found = {key: figures[key] for key in FIGURES if figures.get(key) is not None}
        learned = ", ".join(f"{key} {value:.3f}" for key, value in found.items())
        share = tokens[name] / tokens.total()
        print(f"{name}: {tokens[name]} tokens, {share:.2f} of all; {learned}")
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    asyncio.run(main(parser.parse_args().steps))
