"""Play over HTTP, train here: the arena asks a server, and each new adapter is sent to it.

    uv run legos serve                          # in one terminal: the built-in model, port 8000
    uv run python examples/over_http.py         # in another

Every step's adapter is sent to the server, which samples with it from the next token on. Each move
is one request, so that the 60 steps of 64 plays take four minutes of CPU time, with the server's.
Optimal moves rise from 0.34 to 0.40; `self_play.py` does the same inside of one process, and many
times as fast.
"""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from legos import (
    DrGRPOCredit,
    OpenAIClient,
    Trainer,
    TrainingConfig,
    apply_lora,
    evaluate,
    load_model,
    make_arena,
    synchronous_training_loop,
    training_loop,
)


def told(figures: Mapping[str, Any]) -> str:
    """The figures that show learning, as text."""
    names = ("optimal_move_rate", "exploitability", "illegal_probability")
    return ", ".join(f"{name} {figures[name]:.4f}" for name in names)


async def main(url: str, steps: int) -> None:
    """Train by self-play over HTTP and print what changed."""
    model = load_model("builtin")
    apply_lora(model, rank=8, layers=16)  # as `legos serve` does
    config = TrainingConfig(
        learning_rate=3e-3,
        entropy_coef=0.5,
        min_samples_per_step=64,
        staleness_limit=1,
        warmup_steps=10,
    )
    trainer = Trainer(model=model, config=config)
    async with OpenAIClient(base_url=f"{url}/v1") as client:
        arena = make_arena("nim", client)
        arena.credit_assigner = DrGRPOCredit()
        arena.tasks_per_step, arena.group_size = 8, 8
        print("before:", told(await evaluate(arena, trainer)))

        # Played and trained at the same time; the loop publishes to the server that is asked ...
        await training_loop(arena, trainer, steps - 2, episode_concurrency=64)
        # ... then one step with no lag allowed, and one by hand.
        await synchronous_training_loop(arena, trainer, steps - 1, episode_concurrency=64)
        batch = await arena.step(concurrency=64)
        metrics = trainer.train_step(batch)
        live = await trainer.publish_weights(url)
        print(f"step {metrics['step']}: loss {metrics['loss']:.4f}, live: {live}")
        print("after:", told(await evaluate(arena, trainer)))
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.steps))
