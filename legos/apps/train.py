"""``legos train``: everything put together, run, and summed up."""

import asyncio
import signal
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from legos.arena.evaluate import ArenaEvaluation, flat_figures
from legos.build.arena import make_arena
from legos.build.machine import blas_hint, quiet_collector
from legos.build.model import load_model
from legos.build.trainer import Trainer
from legos.config.resolve import ResolvedConfig
from legos.config.schema import RunConfig
from legos.loop.checkpoint import newest_whole, read_state
from legos.loop.folder import RunFolder, fresh_folder
from legos.loop.run import Run, RunSettings
from legos.protocols import Tracker
from legos.track import ConsoleTracker, JsonlTracker, ManyTrackers, WandbTracker

__all__ = ["train"]


def train(resolved: ResolvedConfig, *, resume: Path | None = None) -> None:
    """Train as configured, in a new run folder or in the one to resume.

    Args:
        resolved: the checked settings.
        resume: the run folder to go on with.

    Raises:
        LegosError: what ended the run; its checkpoint is written before.
        SystemExit: with 128 + signal number where a signal stopped it.
    """
    config = resolved.config
    console = Console()
    folder = RunFolder(resume or config.out or fresh_folder(Path("runs"), Path(config.arena).stem))
    started = time.perf_counter()
    model = load_model(config.model, inline=config.loop.deterministic)
    trainer = Trainer(
        model=model,
        config=config.training,
        max_rows=config.generation.max_batch,
        prefill_tokens=config.generation.prefill_tokens,
        seed=config.seed,
    )
    try:
        client = trainer.client()
        arena = make_arena(
            config.arena, client, play=config.play, generation=config.generation, seed=config.seed
        )
        if resume is None:
            folder.start(resolved.toml())
        _announce(console, config, folder, trainer)
        run_settings = _run_settings(config)
        with _opened(config, folder, resume) as (tracker, evaluations):
            run = Run(
                folder,
                arena,
                trainer,
                run_settings,
                tracker=tracker,
                evaluations=evaluations,
                evaluate=ArenaEvaluation(arena, client).figures,
            )
            if resume:
                run.resume()
            quiet_collector()
            finished, number = asyncio.run(_until_the_end(run))
        seconds = time.perf_counter() - started
        if finished:
            _sum_up(console, run, folder, config.arena, seconds)
        else:
            _tell(
                console,
                f"stopped after {seconds:.0f} s with a checkpoint; go on with",
                f"  uv run legos train --resume {folder.path}",
            )
        if number is not None:
            raise SystemExit(128 + number)
    finally:
        trainer.close()


async def _until_the_end(run: Run) -> tuple[bool, int | None]:
    """Run until the last step or a signal; whether it finished, and the signal's number."""
    loop = asyncio.get_running_loop()
    received: list[int] = []
    stops: set[asyncio.Task[None]] = set()

    def stop(number: int) -> None:
        received.append(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)  # a second one ends the process at once
        stops.add(loop.create_task(run.stop()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    finished = await run.go()
    return finished, received[0] if received else None


@contextmanager
def _opened(
    config: RunConfig, folder: RunFolder, resume: Path | None
) -> Generator[tuple[Tracker, Tracker]]:
    """The trackers of the steps and of the evaluations, closed at the end whatever happens."""
    keep = read_state(newest_whole(folder.checkpoints))["trainer"]["step"] if resume else None
    trackers: list[Tracker] = [JsonlTracker(folder.metrics, keep_until=keep)]
    evaluations = JsonlTracker(folder.evaluations, keep_until=keep)
    if config.track.wandb != "off":
        trackers.append(
            WandbTracker(
                folder.path,
                project=config.track.project,
                mode=config.track.wandb,
                config=config.model_dump(mode="json"),
            )
        )
    if config.track.console:
        trackers.append(ConsoleTracker(num_steps=config.loop.steps))
    tracker = ManyTrackers(trackers)
    try:
        yield tracker, evaluations
    finally:
        tracker.close()
        evaluations.close()


def _run_settings(config: RunConfig) -> RunSettings:
    loop = config.loop
    return RunSettings(
        num_steps=loop.steps,
        episode_concurrency=config.play.concurrency,
        step_concurrency=loop.step_concurrency,
        checkpoint_every=loop.checkpoint_every,
        keep_checkpoints=loop.keep_checkpoints,
        evaluate_every=loop.evaluate_every,
        episodes_kept=loop.episodes_kept_per_step,
    )


def _announce(console: Console, config: RunConfig, folder: RunFolder, trainer: Trainer) -> None:
    """What is about to run, on what, and where it is kept."""
    model = trainer.model
    adapted = sum(array.size for array in trainer.backend.adapter().arrays.values())
    _tell(
        console,
        f"{config.model} ({model.num_parameters:,} parameters, {adapted:,} in LoRA) plays "
        f"{config.arena} for {config.loop.steps} steps, in {folder.path}",
    )
    hint = blas_hint()
    if hint:
        _tell(console, hint)


def _sum_up(console: Console, run: Run, folder: RunFolder, arena: str, seconds: float) -> None:
    """The evaluation before and after, and what to try next."""
    console.print(_comparison(run.first, run.last, arena))
    _tell(
        console,
        f"done in {seconds:.0f} s; next, try",
        f"  uv run legos eval {folder.path}",
        f"  uv run legos serve --adapter {folder.adapter_folder()}",
        f"  uv run legos train --arena {'nim' if arena == 'kuhn' else 'kuhn'}",
    )


def _tell(console: Console, *lines: str) -> None:
    """Lines as they are: no colours guessed, no breaks put in."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _comparison(first: Mapping[str, Any], last: Mapping[str, Any], arena: str) -> Table:
    """One row per figure that the arena defines."""
    before, after = flat_figures(first), flat_figures(last)
    table = Table(title=arena, box=None, header_style="bold", title_justify="left")
    for title in ("", "before", "after"):
        table.add_column(title, justify="right" if title else "left")
    for name, value in after.items():
        if name != "eval/policy_version":
            label = name.removeprefix("eval/").replace("_", " ")
            table.add_row(label, f"{before.get(name, float('nan')):.4f}", f"{value:.4f}")
    return table
