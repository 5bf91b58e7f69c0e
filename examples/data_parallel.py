"""Several processes play on their own and train one policy together.

    uv run mlx.launch -n 2 --backend ring python examples/data_parallel.py

Each process plays its games with a seed of its own and holds the same policy; before a step they
exchange what they have played, share the work of its gradient, and all apply the same update. On
several machines give ``mlx.launch`` a host file in place of ``-n``.
"""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from legos import Trainer, TrainingConfig, evaluate, load_model, make_arena, training_loop


def told(figures: Mapping[str, Any]) -> str:
    """The figures that show learning, as text."""
    names = ("optimal_move_rate", "exploitability", "illegal_probability")
    return ", ".join(f"{name} {figures[name]:.4f}" for name in names)


async def main(steps: int) -> None:
    """Train together; the first process tells how it went."""
    config = TrainingConfig(
        learning_rate=3e-3, warmup_steps=10, kl_coef=0.0, entropy_coef=0.5, staleness_limit=1
    )
    trainer = Trainer(model=load_model("builtin"), config=config)
    arena = make_arena("nim", trainer.client(), seed=trainer.rank)
    if trainer.rank == 0:
        print("before:", told(await evaluate(arena, trainer)))
    shown = trainer.rank == 0
    await training_loop(arena, trainer, steps, episode_concurrency=128, progress=shown)
    digest = trainer.backend.adapter().digest
    print(f"process {trainer.rank} of {trainer.num_processes}: v{trainer.version} {digest[:12]}")
    if trainer.rank == 0:
        print("after:", told(await evaluate(arena, trainer)))
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    asyncio.run(main(parser.parse_args().steps))
