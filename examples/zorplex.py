"""A model that knows the form of zorplex, for RL to teach what the form is for.

    uv run python examples/zorplex.py runs/zorplex-base

The built-in model cannot write a call. Here it imitates a novice, who calls the right word in 9 of
34 plays and answers the right number in 34 of 133. Two to seven minutes, by the machine. RL with
the command of docs/arenas/talk.md then takes the success from 0.06 to above 0.9 in 60 steps.
"""

import argparse
import asyncio
import re
import shutil
from itertools import islice
from pathlib import Path
from random import Random

import legos.mlx  # noqa: F401  # isort: skip  # before MLX: it loads a fast BLAS
import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx.optimizers import AdamW, clip_grad_norm, linear_schedule

from arenas.zorplex import WORDS, Zorplex
from legos import play_task
from legos.builtin import builtin_path
from legos.fakes import Asked, ScriptedClient

CALLS = {word: f"LOOKUP[{word}]" for word in WORDS}
ROWS, RATE = 32, 5e-3  # answers in an optimiser step, and the learning rate of the first one


def reply(prompt: str, rng: Random) -> str:
    """What the novice says, now and then the right thing."""
    if read := re.search(r"LOOKUP\[\w+\] = (\d+)", prompt):
        right, every = f"[ANSWER] {read[1]}", [f"[ANSWER] {number}" for number in range(1, 101)]
    else:
        right, every = CALLS[re.findall(r"the number of (\w+)", prompt)[-1]], [*CALLS.values()]
    return rng.choice([*every, *[right] * (len(every) // 3)])


async def imitate(folder: Path, steps: int) -> None:
    """Train all weights of the built-in model on plays of the novice; write a model folder."""
    (model, tokenizer, *_), rng = mlx_lm.load(str(builtin_path())), Random(0)
    optimizer = AdamW(linear_schedule(RATE, 0.0, steps), betas=[0.9, 0.98])
    rows: list[tuple[list[int], int]] = []  # token ids of a prompt with its answer; where it begins

    def answer(asked: Asked) -> str:
        chat = [{"role": one.role, "content": one.content} for one in asked.messages]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        said = reply(asked.prompt, rng)
        rows.append(([*prompt, *tokenizer.encode(said), tokenizer.eos_token_id], len(prompt)))
        return said

    def loss(ids: mx.array, starts: mx.array) -> mx.array:
        nats = nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
        answered = (mx.arange(1, ids.shape[1]) >= starts) & (ids[:, 1:] != tokenizer.pad_token_id)
        return mx.sum(nats * answered) / ROWS

    arena = Zorplex(ScriptedClient(answer), kinds=["simple"], levels=["easy"])
    for task in islice(arena.tasks(rng), steps * ROWS // 2):  # two answers in a play
        await play_task(arena, task, {})
        if len(rows) < ROWS:
            continue
        width, starts = max(len(ids) for ids, _ in rows), [[start] for _, start in rows]
        padded = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in rows]
        _, gradients = nn.value_and_grad(model, loss)(mx.array(padded), mx.array(starts))
        optimizer.update(model, clip_grad_norm(gradients, 1.0)[0])
        mx.eval(model.parameters(), optimizer.state)
        rows.clear()
    shutil.copytree(builtin_path(), folder, dirs_exist_ok=True)
    model.save_weights(str(folder / "model.safetensors"))
    print(f"wrote {folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int, nargs="?", default=600)
    asyncio.run(imitate(**vars(parser.parse_args())))
