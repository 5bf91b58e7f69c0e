"""A Ray cluster with generation and scoring workers; it runs on one machine.

    uv run --extra ray python examples/ray_cluster.py --steps 20

Two processes play, one generates, two score; this one trains. On two CPU cores it starts in about
half a minute and makes some steps per second. The reward is the share of the letter b in the
answer, and rises from about 0.05.
"""

import argparse
import asyncio
from collections.abc import Sequence
from random import Random

from legos import Arena, Task
from legos.config.resolve import resolve
from legos.loop.loop import training_loop
from legos.ray.scoring import ScoringWorkers
from legos.wiring.arena import make_arena
from legos.wiring.ray import ray_players
from legos.wiring.trainer import trainer_of


class ShareOfB:
    """A reward model, as slow or as large as it may be; each worker has one."""

    def score(
        self, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[object]
    ) -> list[float]:
        """[N] shares of the letter b."""
        return [text.count("b") / max(1, len(text)) for text in completions]


class Letters(Arena):
    """One answer of eight tokens, scored elsewhere."""

    tasks_per_step, group_size, max_tokens = 8, 8, 8
    workers: ScoringWorkers | None = None

    def tasks(self, rng: Random):
        while True:
            yield Task(id=f"{rng.getrandbits(40)}")

    async def play(self, t):
        self.workers = self.workers or ScoringWorkers(ShareOfB(), name="b", workers=2)
        reply = await t.ask("player", "Write b.")
        [reward] = await self.workers.score(["Write b."], [reply.text], [None])
        return {"player": reward}


async def main(steps: int, ray: str) -> None:
    """Train, and print the mean reward of every tenth step."""
    training = {"training.learning_rate": 3e-3, "training.kl_coef": 0.0}
    places = {"ray": ray, "players": 2, "engines": 1, "arena": f"{__file__}:Letters"}
    config = resolve(overrides={**places, **training}).config
    trainer = await asyncio.to_thread(trainer_of, config, inline=False)

    async def report(metrics, _) -> None:
        if metrics["step"] % 10 == 0 or metrics["step"] == steps:
            print(f"step {metrics['step']}: reward {metrics['reward_mean']:.2f}")

    with ray_players(config, trainer.generation, trainer.model) as play:
        arena = make_arena(config.arena, trainer.client())
        await training_loop(arena, trainer, steps, after_step=report, play=play, progress=False)
        print(f"{play.__self__.bytes_received / 64 / steps:.0f} bytes a sample")  # pyright: ignore
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ray", default="local")
    given = parser.parse_args()
    asyncio.run(main(given.steps, given.ray))
