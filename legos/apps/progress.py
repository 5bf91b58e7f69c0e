"""What a person sees of a run while it goes on: its steps, and what it does between them."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from legos.apps.transcript import example
from legos.config.schema import RunConfig
from legos.errors import CheckpointError, EngineError
from legos.installed import own_version
from legos.loop.concurrency import EngineStats
from legos.protocols import Tracker
from legos.records.count import Count
from legos.run.find import find_run, split_place
from legos.run.folder import RunFolder
from legos.run.key_figures import key_figures
from legos.run.run import Run
from legos.track.beside import TrackerBeside
from legos.track.console import ConsoleTracker, time_left
from legos.track.experiment import ExperimentTracker
from legos.track.jsonl import JsonlTracker
from legos.track.many import ManyTrackers
from legos.track.trackio import start_trackio
from legos.track.wandb import kill_service, start_wandb

LOOK_S = 1.0  # between two looks at what the run does
EXAMPLE_S = 60.0  # least time between two answers that are shown
_TOKENS = "tokens_generated_total"


@contextmanager
def trackers(
    config: RunConfig, folder: RunFolder, arenas: Sequence[str]
) -> Generator[tuple[Tracker, Tracker, ConsoleTracker | None]]:
    """Where the metrics of steps and of evaluations go, and the console; closed at the end."""
    loop, console = config.loop, None
    with ExitStack() as stack:
        evaluations = stack.enter_context(closing(JsonlTracker(folder.evaluations)))
        steps: list[Tracker] = [stack.enter_context(closing(JsonlTracker(folder.metrics)))]
        for name, each in _experiments(config, folder):
            beside = TrackerBeside(each, name, kill=kill_service)
            steps.append(stack.enter_context(closing(beside)))
        if config.track.console:
            console = ConsoleTracker(
                num_steps=loop.steps, evaluate_every=loop.evaluate_every, arenas=arenas
            )
            steps.append(stack.enter_context(closing(console)))
        yield ManyTrackers(steps), evaluations, console


def _experiments(config: RunConfig, folder: RunFolder) -> Iterator[tuple[str, Tracker]]:
    """Start the services of experiments that a run is logged to, each with its name."""
    track = config.track
    settings = {**config.model_dump(mode="json"), "legos_version": own_version()}
    if config.fork_from is not None:
        settings |= _forked_from(*split_place(config.fork_from))
    adapters = partial(
        ExperimentTracker, folder=folder.path, better=key_figures, best_by=config.loop.keep_best
    )
    if track.trackio:  # first: it may not be installed, and an online run would stay
        library, run = start_trackio(folder.path, config=settings, group=track.group)
        yield "trackio", adapters(library, run, step_column=False)
    if track.wandb != "off":
        import wandb

        files = [Path(name.rpartition(":")[0]) for name in config.arenas]
        run = start_wandb(
            folder.path,
            mode=track.wandb,
            config=settings,
            files=[file.resolve() for file in files if file.suffix == ".py" and file.is_file()],
            tags=track.tags or None,
            notes=track.notes,
            group=track.group,
            entity=track.entity,
        )
        yield "Weights & Biases", adapters(wandb, run)


def _forked_from(run: str, step: str | None) -> dict[str, Any]:
    """The run from which another one was forked, with its id if it was logged.

    Of one that was moved or removed nothing is known, and what was logged of it before stays.
    """
    try:
        kept = find_run(run).path / "wandb" / "run-id"
    except CheckpointError:
        return {}
    known = kept.read_text().strip() if kept.is_file() else None
    return {"forked_from": {"run": Path(run).name, "step": step, "id": known}}


@asynccontextmanager
async def shown_while(
    run: Run, console: ConsoleTracker | None, stats: EngineStats
) -> AsyncGenerator[None]:
    """Within the block, the console shows what the run does, for how long, and how fast.

    It also shows an answer now and then, unless it is one of several choices.

    Args:
        run: the run.
        console: shows it; None: nothing is shown.
        stats: returns what the engine counts.
    """

    async def show() -> None:
        loop, doing, since, tokens = asyncio.get_running_loop(), "", 0.0, 0.0
        first = since, 0  # look since which parts of the work have ended, and how many had before
        shown, next_example = None, 0.0
        while console is not None:
            await asyncio.sleep(LOOK_S)
            now = loop.time()
            try:
                sampled = stats().get(_TOKENS, 0.0)
            except EngineError:  # the run itself reports it
                sampled = tokens
            changed = run.doing != doing
            count = run.count
            if changed or count.ended < first[1]:
                first = now, count.ended
            if changed:
                doing, since, tokens = run.doing, now, sampled
            speed = (sampled - tokens) / max(now - since, LOOK_S)
            parts = [] if run.stopping else [*_extent(count, now - first[0], first[1])]
            parts += [f"{now - since:.0f} s so far"] if now - since >= 1 else []
            parts += [f"{speed:.0f} tokens/s"] if speed >= 1 else []
            with suppress(OSError):  # where nobody reads, the line of the next step ends the run
                console.wait(", ".join([doing, *parts]), now=changed and run.stopping)
                if run.example is not None and run.example is not shown and now >= next_example:
                    shown, next_example = run.example, now + EXAMPLE_S
                    if text := example(shown):
                        console.say(text)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()


def _extent(count: Count, seconds: float, before: int) -> Iterator[str]:
    """What has been done, and how long the rest takes; ``before`` had ended these seconds ago."""
    if count.text:
        yield count.text
    ended = count.ended - before
    if ended and (left := time_left((count.planned - count.ended) * seconds / ended)):
        yield f"about {left}"
