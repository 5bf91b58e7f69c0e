"""A game of one's own in ten lines, trained and evaluated exactly.

    uv run python examples/own_game.py
    uv run legos train --arena examples/own_game.py:Race

Two CPU cores, about half a minute. The built-in model has never seen this game; optimal moves rise
from about 0.5 to above 0.9, and moves that are not legal vanish.
"""

import argparse
import asyncio

from legos import DrGRPOCredit, Game, GameArena, Trainer, TrainingConfig, evaluate, load_model
from legos import training_loop as train


class Race(Game):
    """Two runners add 1 or 2 in turn; whoever says 10 wins."""

    roles = ("ann", "bob")
    rules = "In turn, add 1 or 2 to a number that begins below 10. Whoever makes it 10 wins."

    def starts(self):
        return [((count, 0), 1 / 10) for count in range(10)]

    def turn(self, state):
        return self.roles[state[1]] if state[0] < 10 else None

    def view(self, state, role):
        return f"Race to 10, now {state[0]}."

    def legal(self, state, role):
        return ("1", "2") if state[0] < 9 else ("1",)

    def play(self, state, move):
        return state[0] + int(move), 1 - state[1]

    def payoff(self, state):
        last = self.roles[1 - state[1]]
        return {role: 1.0 if role == last else -1.0 for role in self.roles}


def told(figures):
    """The figures that show learning, as text."""
    names = ("optimal_move_rate", "exploitability", "illegal_probability")
    return ", ".join(f"{name} {figures[name]:.4f}" for name in names)


async def main(steps: int) -> None:
    """Train on the game and print its exact figures before and after."""
    config = TrainingConfig(
        learning_rate=3e-3,
        warmup_steps=10,
        entropy_coef=0.3,
        lora_rank=16,
        staleness_limit=1,
    )
    trainer = Trainer(model=load_model(), config=config)
    arena = GameArena(Race, trainer.client(), credit_assigner=DrGRPOCredit())
    arena.tasks_per_step = 64
    print("before:", told(await evaluate(arena, trainer)))
    await train(arena, trainer, steps, episode_concurrency=64)
    print("after:", told(await evaluate(arena, trainer)))
    trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    asyncio.run(main(parser.parse_args().steps))
