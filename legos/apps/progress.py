"""What a person sees of a run while it goes on: its steps, and what it does between them."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager

from legos.apps.transcript import example
from legos.config.schema import RunConfig
from legos.errors import EngineError
from legos.loop.concurrency import EngineStats
from legos.protocols import Tracker
from legos.run.folder import RunFolder
from legos.run.run import Run
from legos.track import ConsoleTracker, JsonlTracker, ManyTrackers, WandbTracker
from legos.track.console import LONG_ANSWER

__all__ = ["shown_while", "trackers"]

LOOK_S = 1.0  # between two looks at what the run does
EXAMPLE_S = 60.0  # least time between two answers that are shown
_TOKENS = "tokens_generated_total"


@contextmanager
def trackers(
    config: RunConfig, folder: RunFolder, arenas: Sequence[str]
) -> Generator[tuple[Tracker, Tracker, ConsoleTracker | None]]:
    """Where the metrics of steps and of evaluations go, and the console; closed at the end."""
    track, loop, console = config.track, config.loop, None
    steps: list[Tracker] = [JsonlTracker(folder.metrics)]
    if track.wandb != "off":
        settings = config.model_dump(mode="json")
        steps.append(WandbTracker(folder.path, mode=track.wandb, config=settings))
    if track.console:
        console = ConsoleTracker(
            num_steps=loop.steps, evaluate_every=loop.evaluate_every, arenas=arenas
        )
        steps.append(console)
    with (
        closing(JsonlTracker(folder.evaluations)) as evaluations,
        closing(ManyTrackers(steps)) as tracker,
    ):
        yield tracker, evaluations, console


@asynccontextmanager
async def shown_while(
    run: Run, console: ConsoleTracker | None, stats: EngineStats
) -> AsyncGenerator[None]:
    """Within the block, the console shows what the run does, for how long, and how fast.

    In arenas of long answers it also shows one now and then.

    Args:
        run: the run.
        console: shows it; None: nothing is shown.
        stats: returns what the engine counts.
    """

    async def show() -> None:
        loop, doing, since, tokens = asyncio.get_running_loop(), "", 0.0, 0.0
        shown, next_example = None, 0.0
        while console is not None:
            await asyncio.sleep(LOOK_S)
            now = loop.time()
            try:
                sampled = stats().get(_TOKENS, 0.0)
            except EngineError:  # the run itself reports it
                sampled = tokens
            changed = run.doing != doing
            if changed:
                doing, since, tokens = run.doing, now, sampled
            speed = (sampled - tokens) / max(now - since, LOOK_S)
            parts = [f"{now - since:.0f} s so far"] if now - since >= 1 else []
            parts += [f"{speed:.0f} tokens/s"] if speed >= 1 else []
            console.wait(", ".join([doing, *parts]), now=changed and run.stopping)
            if run.example is not None and run.example is not shown and now >= next_example:
                shown, next_example = run.example, now + EXAMPLE_S
                if text := example(shown, min_tokens=LONG_ANSWER):
                    console.say(text)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
