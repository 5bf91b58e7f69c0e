"""The program of the design, on the built-in model: load, adapt, play, train, compare.

    uv run python examples/self_play.py

Two CPU cores, about a minute. Optimal moves in nim rise from about 0.35 to well above 0.8; the
last lines show that the model without LoRA is still the one it was loaded as.
"""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from legos import (
    DrGRPOCredit,
    Message,
    Trainer,
    TrainingConfig,
    apply_lora,
    disable_lora,
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


async def main(steps: int) -> None:
    """Train by self-play and print what changed."""
    model = load_model("builtin")  # or a folder, or "mlx-community/Qwen2.5-1.5B-Instruct-4bit"
    prompt = model.tokenizer.render((Message("user", "Nim: 7 left, last one wins.\nMoves: 1 2 3"),))
    before = model(prompt)[-1]
    apply_lora(model, rank=16, layers=16)
    config = TrainingConfig(
        learning_rate=3e-3,
        entropy_coef=0.5,
        min_samples_per_step=256,
        staleness_limit=1,
        warmup_steps=10,
    )
    trainer = Trainer(model=model, config=config)
    arena = make_arena("nim", trainer.client())
    arena.credit_assigner = DrGRPOCredit()
    print("before:", told(await evaluate(arena, trainer)))

    # Played and trained at the same time, at most one optimiser step apart ...
    await training_loop(arena, trainer, steps - 2, episode_concurrency=256)
    # ... then one step with no lag allowed, and one by hand.
    await synchronous_training_loop(arena, trainer, steps - 1, episode_concurrency=256)
    batch = await arena.step(concurrency=256)
    metrics = trainer.train_step(batch)
    live = await trainer.publish_weights()
    print(f"step {metrics['step']}: loss {metrics['loss']:.4f}, live: {live}")
    print("after:", told(await evaluate(arena, trainer)))

    with disable_lora(model):
        print("the reference is unchanged:", np.array_equal(model(prompt)[-1], before))
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    asyncio.run(main(parser.parse_args().steps))
