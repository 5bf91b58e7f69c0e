"""Play and training at the same time, and in turns, side by side: a marimo notebook.

    uv run --extra notebook marimo edit examples/async_notebook.py
    uv run --extra notebook python examples/async_notebook.py    # every cell once, no browser

The second line takes about a minute on two CPU cores, and prints a line for each way to run: the
share of right answers rises from 0.30 to 0.50 in both, and overlap has the busier trainer. With
`-- --model FOLDER`, a chat model plays zorplex in place of the small game: docs/log/chat_models.md
makes such a folder, of a model that knows the form of the calls.
"""

import marimo

app = marimo.App(width="medium")

with app.setup:
    import asyncio
    import time
    from collections import Counter
    from collections.abc import Mapping, Sequence
    from contextlib import closing
    from typing import Any

    import marimo as mo
    import matplotlib.pyplot as plt

    from arenas.countdown import Countdown
    from arenas.zorplex import MODES, Zorplex
    from legos import (
        Arena,
        GRPOCredit,
        Table,
        Trainer,
        TrainingConfig,
        evaluate,
        load_model,
        synchronous_training_loop,
        training_loop,
    )


@app.cell(hide_code=True)
def _() -> None:
    mo.md("""
    # Play while you train, or take turns?

    The model sees `3 ? 4 = 12` and picks `+`, `-` or `*`; then a slow tool does its work. In
    turns, the trainer waits for the tool and the players wait for the trainer. With overlap, plays
    go on during an optimiser step, so some samples are a version old when they are trained on.
    """)


@app.cell
def _() -> tuple[Any, ...]:
    asked = int(str(mo.cli_args().get("steps") or 40))  # -- --steps N on the command line
    model = str(mo.cli_args().get("model") or "builtin")
    steps = mo.ui.slider(4, 100, value=asked, label="optimiser steps", debounce=True)
    tool_s = mo.ui.slider(0.0, 2.0, step=0.1, value=0.5, label="tool, seconds", debounce=True)
    limit = mo.ui.slider(1, 4, value=1, label="staleness limit, steps", debounce=True)
    mo.vstack([steps, tool_s, limit])
    return limit, model, steps, tool_s


@app.class_definition
class Slow(Arena):
    """An arena with a tool that takes its time at the end of each play."""

    tasks_per_step, group_size, tool_s = 32, 4, 0.0

    def __init__(self, client: Any, **options: Any) -> None:
        """Begin without plays."""
        super().__init__(client, credit_assigner=GRPOCredit(), **options)
        self.times: list[tuple[float, float]] = []  # start and length of each play, seconds

    async def play(self, t: Table) -> Mapping[str, Mapping[str, float]]:
        """A play, and the tool."""
        began = time.time()
        rewards: Any = await super().play(t)
        await asyncio.sleep(self.tool_s)
        self.times.append((began, time.time() - began))
        correct = rewards["player"]["correct"]
        t.metric(correct=correct, wrong=1 - correct)
        return rewards


@app.class_definition
class Operators(Slow, Countdown):
    """The operator between two numbers."""

    options, modes = {"size": 2, "largest": 20, "operator": True}, ("correct", "wrong")


@app.class_definition
class Lookups(Slow, Zorplex):
    """The number of a word, which the model looks up."""

    tasks_per_step, max_tokens = 8, 24
    options, modes = {"kinds": ("simple", "multi_step", "recursive"), "levels": ("easy",)}, MODES


@app.class_definition
class Run:
    """One training run of a new copy of a model, and what happened in it."""

    def __init__(self, *, model: str, overlap: bool, steps: int, tool_s: float, limit: int) -> None:
        """Train at once."""
        self.arena = Operators if model == "builtin" else Lookups
        self.updates: list[tuple[float, float]] = []  # start and length of each, seconds
        self.rewards: list[float] = []
        self.samples: list[int] = []  # number of samples after each step
        self.ages = Counter[int]()
        config = TrainingConfig(staleness_limit=limit if overlap else 0)
        if model == "builtin":
            config = config.replace(learning_rate=3e-3, warmup_steps=10, entropy_coef=0.1)
        with closing(Trainer(model=load_model(model), config=config)) as trainer:
            arena = self.arena(trainer.client(), seed=1, **self.arena.options)
            arena.tool_s = tool_s
            self.before = asyncio.run(self._endings(trainer))
            self.began = time.time()
            loop = training_loop if overlap else synchronous_training_loop
            options = {"episode_concurrency": 256, "after_step": self._note, "progress": False}
            asyncio.run(loop(arena, trainer, steps, **options))
            self.seconds = time.time() - self.began
            self.after = asyncio.run(self._endings(trainer))
        self.plays = arena.times

    async def _note(self, metrics: Mapping[str, Any], batches: Sequence[Any]) -> None:
        self.updates.append((time.time() - metrics["step_s"], metrics["step_s"]))
        self.rewards.append(metrics["reward_mean"])
        samples = [sample for batch in batches for sample in batch.samples]
        self.samples.append(len(samples) + (self.samples[-1] if self.samples else 0))
        trained = metrics["policy_version"] - 1
        self.ages.update(trained - sample.oldest_version for sample in samples)

    async def _endings(self, trainer: Trainer) -> dict[str, float]:
        """Share of plays of the same held-out tasks that end in each way."""
        arena = self.arena(trainer.client(), seed=2, **self.arena.options)
        greedy = 0.0 if self.arena is Lookups else None  # the most probable token
        metrics = await evaluate(arena, trainer, plays=64, temperature=greedy)
        return {mode: metrics["metric"][mode] for mode in arena.modes}

    def row(self) -> dict[str, str]:
        """Its line in the table."""
        ages = sum(age * number for age, number in self.ages.items())
        return {
            "seconds": f"{self.seconds:.1f}",
            "samples per second": f"{self.samples[-1] / self.seconds:.3g}",
            "trainer busy": f"{sum(length for _, length in self.updates) / self.seconds:.0%}",
            "mean age, steps": f"{ages / self.ages.total():.2f}",
            "oldest, steps": f"{max(self.ages)}",
            **{
                f"{mode} before, after": f"{self.before[mode]:.2f}, {self.after[mode]:.2f}"
                for mode in self.arena.modes
            },
        }


@app.cell
async def _(limit: Any, model: str, steps: Any, tool_s: Any) -> tuple[Any, ...]:
    ways = {"in turns": False, "overlap": True}
    settings = {"steps": steps.value, "tool_s": tool_s.value, "limit": limit.value, "model": model}
    runs = {  # in a thread, because a notebook has an event loop of its own
        name: await asyncio.to_thread(Run, overlap=overlap, **settings)
        for name, overlap in ways.items()
    }
    return (runs,)


@app.cell
def _(runs: dict[str, Run]) -> None:
    rows = [{"run": name, **run.row()} for name, run in runs.items()]
    print(*rows, sep="\n")
    mo.ui.table(rows, selection=None)


@app.function
def timeline(axis: Any, name: str, run: Run, until: float) -> None:
    """A line for each play, and a bar below them for each optimiser step."""
    bars = [(began - run.began, length) for began, length in run.updates]
    axis.broken_barh(bars, (-14, 10), color="C1")
    for row, (began, length) in enumerate(sorted(run.plays)[:64]):
        axis.hlines(row, began - run.began, began - run.began + length, color="C0")
    axis.set(title=f"{name}: plays, and steps below", xlabel="seconds", yticks=[], xlim=(0, until))


@app.cell
def _(runs: dict[str, Run]) -> None:
    figure, ((first, second), (reward, ends)) = plt.subplots(
        2, 2, figsize=(10, 6), layout="constrained"
    )
    until = max(run.seconds for run in runs.values())
    for axis, (name, run) in zip((first, second), runs.items(), strict=True):
        timeline(axis, name, run, until)
        reward.plot(run.samples, run.rewards, label=name)
    reward.set(xlabel="samples", ylabel="mean reward", title="reward at equal samples")
    reward.legend()
    bars = {"before": runs["overlap"].before}
    bars |= {f"after, {name}": run.after for name, run in runs.items()}
    modes = runs["overlap"].arena.modes
    for shift, (name, shares) in enumerate(bars.items()):
        where = [x + 0.25 * shift for x in range(len(modes))]
        ends.bar(where, [shares[mode] for mode in modes], 0.25, label=name)
    ends.set(ylabel="share of plays", title="how plays end")
    ends.set_xticks([x + 0.25 for x in range(len(modes))], modes)
    ends.legend()
    mo.as_html(figure)


if __name__ == "__main__":
    app.run()
