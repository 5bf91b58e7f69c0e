"""Train one policy on two games at once, each with its share of the tokens.

    uv run python examples/two_games.py
    uv run legos train --mix nim=0.6 --mix kuhn=0.4        # the same as a command

Two CPU cores, about a minute. The share of kuhn falls from 0.6 to 0.2 during the run. At the end
the program prints the tokens of each game and the figures of both; in nim, optimal moves rise from
about 0.35.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence

from legos import Mix, Portion, Trainer, TrainingConfig, evaluate, load_model, make_arena
from legos import training_loop as train
from legos.data.sample import TrainingBatch


async def main(steps: int) -> None:
    """Train on both games, and print what each got and what was learned."""
    model = load_model("builtin")
    config = TrainingConfig(
        learning_rate=3e-3, kl_coef=0.0, staleness_limit=1, lora_rank=16, entropy_coef=0.2
    )
    trainer = Trainer(model=model, config=config)
    client = trainer.client()
    nim, kuhn = (make_arena(name, client) for name in ("nim", "kuhn"))
    mix = Mix(
        {nim: Portion(0.4, share_end=0.8), kuhn: Portion(0.6, share_end=0.2, order="newest")},
        tokens_per_step=1024,
    )
    tokens = Counter[str]()

    async def after_step(_: object, batches: Sequence[TrainingBatch]) -> None:
        for batch in batches:
            tokens[batch.arena] += sum(len(sample.positions) for sample in batch.samples)

    await train(mix, trainer, steps, episode_concurrency=256, after_step=after_step)
    for name, number in tokens.items():
        print(f"{name}: {number} tokens, {number / tokens.total():.2f} of all")
    for arena in (nim, kuhn):
        figures = await evaluate(arena, trainer)
        print(arena.name, {key: figures[key] for key in ("optimal_move_rate", "exploitability")})
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    asyncio.run(main(parser.parse_args().steps))
