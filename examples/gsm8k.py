"""GRPO on a maths set in GSM8K's form, as a program; examples/gsm8k.toml is the same as settings.

    legos serve --model MODEL                                   # generates on one device
    uv run python examples/gsm8k.py --model MODEL --server http://localhost:8000

Torch trains on this process's device (extra `torch`), and the server generates on its own. Without
--server, MLX does both in this process. --data takes a file of rows with a question and an answer.
Not run on GSM8K yet: its minutes and curve are not known. With --max-tokens 64, three steps of the
built-in model take 11 seconds of CPU time. What a small chat model learns: docs/log/chat_models.md.
"""

import argparse
import asyncio
import sys
from contextlib import closing
from pathlib import Path

from arenas.math import Math
from legos import DrGRPOCredit, Trainer, TrainingConfig, evaluate, load_model
from legos.errors import LegosError

SHOWN = ("reward_mean", "loss", "kl_divergence", "entropy", "clip_fraction", "staleness_max")


def make_trainer(args: argparse.Namespace) -> Trainer:
    """The trainer, whose engine is the server or this process."""
    config = TrainingConfig(
        learning_rate=args.learning_rate,
        clip_range=0.2,
        clip_range_high=0.28,
        kl_coef=0.01,  # to the model without LoRA, which stays as it is
        entropy_coef=0.001,
        staleness_limit=args.sync_every,
        gradient_checkpointing=True,
    )
    model = load_model(args.model, device="torch" if args.server else "mlx")
    return Trainer(model=model, config=config, generation=args.server)


async def main(args: argparse.Namespace, trainer: Trainer) -> None:
    """Play, train and publish, with a line of metrics as it goes."""
    arena = Math(trainer.client(), data=args.data, credit_assigner=DrGRPOCredit())
    arena.tasks_per_step, arena.group_size, arena.max_tokens = args.problems, 8, args.max_tokens
    trainer.num_steps = args.steps  # the entropy bonus falls to 0 until then
    await trainer.publish_weights()
    for step in range(1, args.steps + 1):
        metrics = trainer.train_step(await arena.step(concurrency=256))
        if step % args.sync_every == 0:
            await trainer.publish_weights()
        told = (f"{name} {metrics.get(name) or 0.0:.4g}" for name in SHOWN)
        print(f"step {step}:", ", ".join(told), flush=True)
        if step % args.checkpoint_every == 0:
            (folder := Path(args.out) / f"step-{step}").mkdir(parents=True)
            trainer.save(folder)
    await trainer.publish_weights()  # the newest, whatever --sync-every is
    held_out = await evaluate(arena, trainer)
    parts = ", ".join(f"{name} {mean:.4g}" for name, mean in held_out["reward_part"].items())
    print(f"held out: {held_out['plays']} plays, {parts}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--server", help="address of a server with the same model")
    parser.add_argument("--data", default="openai/gsm8k:main")
    parser.add_argument("--out", default="runs/gsm8k-checkpoints")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--problems", type=int, default=8, help="of each step")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, help="by default, by the size of the model")
    parser.add_argument("--sync-every", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    arguments = parser.parse_args()
    if [*Path(arguments.out).glob("step-*")]:  # of another run
        parser.error(f"{arguments.out} has checkpoints; give another folder as --out")
    try:
        with closing(make_trainer(arguments)) as trained:
            asyncio.run(main(arguments, trained))
    except LegosError as error:
        sys.exit(f"error: {error}")
