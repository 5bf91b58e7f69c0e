"""A first hour in one page: a game of your own, learned, looked into and played; a marimo notebook.

    uv run --extra notebook marimo edit examples/first_hour_notebook.py
    uv run --extra notebook python examples/first_hour_notebook.py    # every cell once, no browser

The second line takes about half a minute on two CPU cores, and prints the share of optimal moves,
which rises from about 0.5 to above 0.9.
"""

import marimo

app = marimo.App(width="medium")

with app.setup:
    import asyncio
    import math
    from collections.abc import Sequence
    from contextlib import closing
    from typing import Any

    import marimo as mo
    import matplotlib.pyplot as plt

    from legos import (
        DrGRPOCredit,
        Game,
        GameArena,
        Message,
        Sampling,
        Trainer,
        TrainingConfig,
        evaluate,
        load_model,
        training_loop,
    )

    GOAL = 10


@app.cell(hide_code=True)
def _() -> None:
    mo.md("""
    # A first hour

    A language model gets better at a task by doing it: it plays, the plays are scored, and LoRA
    weights move towards what scored well. You write the task, in Python. Here is one, with the
    small model that is part of the package; change anything, and the cells below run again.

    ## 1. The rules of a game

    Two runners add 1 or 2 in turn; whoever says 10 wins. A game is a few functions of its state.
    """)


@app.class_definition
class Race(Game):
    """Add 1 or 2 in turn; whoever makes it 10 wins. A state: the number, and who is next."""

    roles = ("ann", "bob")
    rules = "In turn, add 1 or 2 to a number that begins below 10. Whoever makes it 10 wins."

    def starts(self) -> list[tuple[tuple[int, int], float]]:
        """Every number, equally often."""
        return [((count, 0), 1 / GOAL) for count in range(GOAL)]

    def turn(self, state: tuple[int, int]) -> str | None:
        """Who moves; None at the end."""
        return self.roles[state[1]] if state[0] < GOAL else None

    def view(self, state: tuple[int, int], role: str) -> str:
        """What the model reads; its moves are written below."""
        return f"Race to {GOAL}, now {state[0]}."

    def legal(self, state: tuple[int, int], role: str) -> tuple[str, ...]:
        """Nobody can go beyond the goal."""
        return ("1", "2") if state[0] < GOAL - 1 else ("1",)

    def play(self, state: tuple[int, int], move: str) -> tuple[int, int]:
        """The next state."""
        return state[0] + int(move), 1 - state[1]

    def payoff(self, state: tuple[int, int]) -> dict[str, float]:
        """The last to move has won."""
        last = self.roles[1 - state[1]]
        return {role: 1.0 if role == last else -1.0 for role in self.roles}


@app.cell
def _() -> tuple[Any, ...]:
    asked = int(str(mo.cli_args().get("steps") or 100))  # -- --steps N on the command line
    steps = mo.ui.slider(4, 300, value=asked, label="optimiser steps", debounce=True)
    entropy = mo.ui.slider(0.0, 0.5, step=0.1, value=0.3, label="entropy bonus", debounce=True)
    mo.vstack([mo.md("## 2. Train"), steps, entropy])
    return entropy, steps


@app.function
def new_trainer(entropy: float) -> Trainer:
    """A trainer of a new copy of the model; a language model needs none of these settings."""
    settings = {"learning_rate": 3e-3, "warmup_steps": 10, "entropy_coef": entropy}
    return Trainer(model=load_model(), config=TrainingConfig(staleness_limit=1, **settings))


@app.function
async def chance_of_one(trainer: Trainer) -> list[float]:
    """Probability of adding 1 at each number, as the policy has it now."""
    await trainer.publish_weights()
    moves, chances = Sampling(choices=("1", "2"), restrict=True, max_tokens=None), []
    for count in range(GOAL - 1):
        prompt = (Message("user", f"Race to {GOAL}, now {count}.\nMoves: 1 2"),)
        said = await trainer.client().complete(prompt, moves, adapter="policy")
        chosen = math.exp(sum(said.logprobs))
        chances.append(chosen if said.text == "1" else 1 - chosen)
    return chances


@app.function
async def learn_the_race(steps: int, entropy: float) -> dict[str, Any]:
    """Train by self-play; what was measured on the way, and the policy before and after."""
    optimal: dict[int, float] = {}
    with closing(new_trainer(entropy)) as trainer:
        arena = GameArena(Race, trainer.client(), credit_assigner=DrGRPOCredit())
        arena.tasks_per_step = 64

        async def note(*_: Any) -> None:
            if trainer.step % 10 == 0 or trainer.step == steps:
                figures = await evaluate(arena, trainer)  # exact: every state is looked at
                optimal[trainer.step] = figures["optimal_move_rate"]

        before = await chance_of_one(trainer)
        await note()
        options = {"episode_concurrency": 64, "after_step": note, "progress": False}
        await training_loop(arena, trainer, steps, **options)
        return {"optimal": optimal, "before": before, "after": await chance_of_one(trainer)}


@app.cell
async def _(entropy: Any, steps: Any) -> tuple[Any, ...]:
    learning = learn_the_race(steps.value, entropy.value)
    race = await asyncio.to_thread(asyncio.run, learning)  # the notebook's own loop stays free
    first, *_, last = race["optimal"].values()
    print(f"optimal moves: {first:.2f} before, {last:.2f} after")
    return (race,)


@app.cell
def _(race: dict[str, Any]) -> None:
    figure, (curve, bars) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
    curve.plot(race["optimal"].keys(), race["optimal"].values())
    curve.set(xlabel="optimiser step", ylabel="share", title="optimal moves", ylim=(0, 1.02))
    for shift, when in enumerate(("before", "after")):
        where = [count + 0.4 * shift for count in range(GOAL - 1)]
        bars.bar(where, race[when], 0.4, label=when)
    best = {count: (GOAL - count - 1) % 3 == 0 for count in range(GOAL - 1) if (GOAL - count) % 3}
    for count, one in best.items():
        bars.plot(count + 0.2, float(one), "k*")
    told = "probability of adding 1; * is the winning move"
    bars.set(xlabel="the number now", title=told, ylim=(-0.05, 1.05))
    bars.legend()
    told = (
        "The winning move goes to 1, 4, 7 or 10; at 1, 4 and 7 every move loses, so without a star."
    )
    mo.vstack([mo.md(f"## 3. What it knows\n\n{told}"), mo.as_html(figure)])


@app.cell(hide_code=True)
def _() -> tuple[Any, ...]:
    yours = mo.ui.text(value="1", label="your moves, such as 1 2 1")
    mo.vstack([mo.md("## 4. Play against it\n\nYou begin, at 0, and it answers."), yours])
    return (yours,)


@app.function
def replay(moves: Sequence[str], chances: Sequence[float]) -> str:
    """A game of these moves against the most probable answers, in words."""
    count, said = 0, []
    for move in moves:
        if move not in ("1", "2") or count + int(move) > GOAL:
            said.append(f"{move!r} is not a move here: 1 or 2, up to {GOAL}")
            break
        count += int(move)
        said.append(f"you say {count}" + ": you win" * (count == GOAL))
        if count == GOAL:
            break
        count += 1 if count == GOAL - 1 or chances[count] >= 0.5 else 2
        said.append(f"it says {count}" + ": it wins" * (count == GOAL))
    return ", ".join(said)


@app.cell
def _(race: dict[str, Any], yours: Any) -> None:
    mo.md(replay(yours.value.split(), race["after"]))


@app.cell(hide_code=True)
def _() -> None:
    mo.md("""
    ## 5. Go on

    `uv run legos train --arena examples/first_hour_notebook.py:Race` trains the same class as a
    run, with checkpoints, plays to read, and an adapter that `uv run legos serve --adapter race-1`
    serves; `--model` takes a language model. docs/start/first_hour.md goes on with an arena of
    three roles, questions from a file, and a model of your own.
    """)


if __name__ == "__main__":
    app.run()
