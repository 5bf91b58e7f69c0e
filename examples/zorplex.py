"""A model that knows the form of zorplex, for RL to teach what the form is for.

    uv run python examples/zorplex.py runs/zorplex-base

The built-in model cannot write a call, so it never gets a reward. Here it learns to imitate a
scripted novice, who calls the word of the question in 9 of 34 plays, otherwise any other word, and
answers the number that came back in 34 of 133 plays, otherwise any other number from 1 to 100. The
novice succeeds in 0.075 of the plays. One core, two to three minutes. With the command of
docs/arenas/talk.md, RL then takes the success of the model from 0.06 to above 0.9 in 60 steps.
"""

import argparse
import asyncio
import logging
import re
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

from arenas.zorplex import WORDS, Zorplex
from legos import play_task
from legos.builtin.practice import Exercise
from legos.fakes import Asked, ScriptedClient
from legos.mlx.pretraining import ROWS, imitate


@cache
def answers(prompt: str) -> tuple[str, ...]:
    """What the novice may say; the right answer is there more than once."""
    read = re.search(r"LOOKUP\[\w+\] = (\d+)", prompt)
    if read:
        right, every = f"[ANSWER] {read[1]}", [f"[ANSWER] {number}" for number in range(1, 101)]
    else:
        word = re.findall(r"the number of (\w+)", prompt)[-1]
        right, every = f"LOOKUP[{word}]", [f"LOOKUP[{word}]" for word in WORDS]
    return (*every, *[right] * (len(every) // 3))


async def novice(num: int, rng: Random) -> list[Exercise]:
    """Prompts that the novice sees in new plays, with what it may say to each."""
    seen: list[Exercise] = []

    def answer(asked: Asked) -> str:
        seen.append(Exercise(asked.messages, answers(asked.prompt)))
        return rng.choice(seen[-1].answers)

    arena = Zorplex(ScriptedClient(answer), kinds=["simple"], levels=["easy"])
    for task in islice(arena.tasks(rng), num // 2):
        await play_task(arena, task, {})
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    exercises = asyncio.run(novice(arguments.steps * ROWS, Random(0)))
    imitate(exercises, arguments.folder)
    print(f"wrote {arguments.folder}")
