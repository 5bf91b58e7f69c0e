"""``legos train``: set up a run, train, and summarise it."""

import asyncio
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from legos.apps.adapters import resume_command
from legos.apps.evaluate import OF_PLAYS
from legos.apps.page_beside import page_beside
from legos.apps.progress import shown_while, trackers
from legos.apps.restart import restart, watched
from legos.apps.seated import check_opponents_exist, load_seated
from legos.apps.signals import StopSignals
from legos.apps.summary import announcement, comparison, summary
from legos.config.resolve import ResolvedConfig, is_chosen, read_config
from legos.config.schema import RunConfig
from legos.errors import ConfigError, DeviceError, LegosError, TrainerError
from legos.mac import awake
from legos.machine import quiet_collector, share_cores
from legos.play.step import play_each
from legos.protocols import Tracker
from legos.records.names import evaluated_name
from legos.run.checkpoint import checkpoints
from legos.run.ending import failure_kept
from legos.run.find import checkpoint_of, find_run, fresh_folder, split_place
from legos.run.folder import CONFIG, FAILS_AGAIN, RUNS, RunFolder
from legos.run.run import Run
from legos.stalls import STALL_AFTER_S, LoopWatch
from legos.track.console import ConsoleTracker
from legos.track.output import OutputConsole
from legos.wiring.arena import make_mix, warn_of_few_plays
from legos.wiring.evaluate import evaluation_of
from legos.wiring.model import has_followers
from legos.wiring.options import check_options
from legos.wiring.ray import ray_players
from legos.wiring.serving import put_on
from legos.wiring.trainer import Trainer, start_of, trainer_of

if TYPE_CHECKING:
    from legos.apps.served_run import ServedRun
    from legos.remote.ray.players import Players

_NEEDS_CHANGE = (*FAILS_AGAIN, TrainerError)
_CHANGE = "change what the message names, then "
_AT_ONCE = "; a second signal (Ctrl-C) ends the run at once, without a checkpoint of the last steps"
SERVED_AT = "127.0.0.1"


def check(resolved: ResolvedConfig, *, resume: Path | None = None) -> None:
    """Check what can be checked before anything is loaded or written.

    Args:
        resolved: the resolved settings.
        resume: folder of the run to continue.

    Raises:
        LegosError: the arena or an option of it does not exist, the folder holds another run, or
            the port is taken.
    """
    config = resolved.config
    check_options(config)
    check_opponents_exist(config)
    if config.adapter is not None and resume is None and config.fork_from is None:
        _check_start(resolved)
    if config.loop.serve_port:
        from legos.server.listen import bind  # a slow import

        bind(SERVED_AT, config.loop.serve_port).close()
    if resume is None and config.out is not None:
        RunFolder(config.out).check_free()


def train(
    resolved: ResolvedConfig,
    *,
    resume: Path | None = None,
    view: bool = False,
) -> tuple[int, Path]:
    """Train as configured, in a new run folder or in the one to resume.

    Args:
        resolved: the resolved settings.
        resume: folder of the run to continue.
        view: whether a local page shows the run meanwhile.

    Returns:
        Exit code, 0 or 128 + the number of the signal that ended the run; and the run folder.

    Raises:
        LegosError: the error that ended the run; a checkpoint is written first.
    """
    try:
        if resume is None:
            return _train(resolved, None, None, view=view)
        folder = RunFolder(resume)
        with folder.resumed_run() as checkpoint:
            if checkpoint is None:
                _print(f"the run in {resume} ended before its first checkpoint and starts again")
            return _train(resolved, folder, checkpoint, view=view)
    except DeviceError as error:
        if error.run is not None and not has_followers():  # which have ended
            restart(error.run, str(error))
        raise


def _train(
    resolved: ResolvedConfig, resumed: RunFolder | None, checkpoint: Path | None, *, view: bool
) -> tuple[int, Path]:
    config = resolved.config
    started = time.perf_counter()
    _print(f"loading {config.model}")
    made = trainer_of(
        config,
        inline=config.loop.deterministic,
        start=start_of(config, _continued(config, resumed, checkpoint)),
        restored=checkpoint is not None or config.fork_from is not None,
        tell=_print,
        api_key=os.environ.get("LEGOS_API_KEY"),
    )
    with closing(made) as trainer:
        mix = make_mix(config, client := trainer.client())
        for arena in mix.arenas.values():
            warn_of_few_plays(arena)
        put = partial(put_on, trainer.engine, model=config.model)
        seated, opponents = load_seated(mix.arenas.values(), put)
        place = trainer.generation, trainer.model
        served = _served(config, trainer)
        with (
            ThreadPoolExecutor(max_workers=1) as writer,
            StopSignals() as signals,
            ray_players(config, *place, seated=seated, opponents=opponents) as players,
            _folder(resolved, resumed, mix.title, signals) as folder,
        ):
            signals.advice = f"; continue with\n  {resume_command(folder.path)}"
            run = Run(
                folder,
                mix,
                trainer,
                config.loop,
                episode_concurrency=config.play.concurrency,
                facts={"base_model": config.model, "thinking": trainer.model.tokenizer.thinking},
                evaluation=evaluation_of(config, mix, client),
                count_tokens=_token_count(trainer, served, players),
                engine_stats=trainer.engine.stats,
                writer=writer,
                league=config.league,
                play=play_each if players is None else players.play,
            )
            _restore(run, config, checkpoint)
            seconds = 0.0
            if not run.finished:
                if resumed is not None:
                    _keep_settings(folder, resolved, run.step)
                _print(*announcement(resolved, folder, trainer, run))
                serving = nullcontext() if served is None else served.open(_print)
                page = page_beside(folder.path) if view else nullcontext()
                with failure_kept(folder), page:
                    _go(run, config, folder, trainer, signals=signals, serving=serving)
                seconds = time.perf_counter() - started
            _check_and_compare(run, trainer, config.title)
            _print(*summary(run, folder, config, seconds, signals.received))
        return 0 if signals.received is None else 128 + signals.received, folder.path


def _restore(run: Run, config: RunConfig, checkpoint: Path | None) -> None:
    """Restore the state with which the run begins, if it goes on or is forked."""
    if checkpoint is not None:
        forked_at, kept = split_place(config.fork_from or "")[1], checkpoint / CONFIG
        same = not kept.exists() or _same_evaluation(config, read_config(kept))
        run.resume(checkpoint, forked_at=int(forked_at or 0), same_evaluation=same)
    elif config.fork_from is not None:
        _fork(run, config, config.fork_from)


def _check_and_compare(run: Run, trainer: Trainer, title: str) -> None:
    """Print a table of a finished run; refuse one whose steps changed nothing."""
    if run.finished:
        OutputConsole().print(comparison(run.first, run.last, title))
        trainer.ledger.check_applied()


def _continued(
    config: RunConfig, resumed: RunFolder | None, checkpoint: Path | None
) -> RunFolder | None:
    """The run whose checkpoint is restored."""
    if config.fork_from is not None and checkpoint is None:
        return find_run(split_place(config.fork_from)[0])
    return None if checkpoint is None else resumed


def _token_count(
    trainer: Trainer, served: "ServedRun | None", players: "Players | None"
) -> Callable[[], Awaitable[int]]:
    """Counts the tokens sampled for plays and evaluations, without those of HTTP requests."""
    names = (*trainer.policies, *map(evaluated_name, trainer.policies))

    async def count() -> int:
        sampled = [await trainer.tokens_generated(name) for name in names]
        elsewhere = 0 if players is None else await players.sampled()
        return sum(sampled) + elsewhere - (0 if served is None else served.tokens_generated)

    return count


def _check_start(resolved: ResolvedConfig) -> None:
    """Refuse a shape of LoRA besides that of the adapter to start from, which must exist."""
    adapter = resolved.config.adapter
    for name, source in resolved.sources.items():
        if name.startswith("training.lora_") and is_chosen(source):
            raise ConfigError(
                f"{name} is given ({source}) but adapter is {adapter!r}, whose own rank, scale and "
                f"modules hold; leave {name} out, or leave adapter out"
            )
    start_of(resolved.config, None)


@contextmanager
def _folder(
    resolved: ResolvedConfig, resumed: RunFolder | None, name: str, signals: StopSignals
) -> Generator[RunFolder]:
    """The run's folder; adds how to continue to an error that ends the run."""
    folder = resumed or RunFolder(resolved.config.out or fresh_folder(RUNS, name))
    try:
        with folder.new_run(resolved.toml()) if resumed is None else nullcontext():
            yield folder
    except LegosError as error:
        if checkpoints(folder.checkpoints):
            change = "" if folder.has_steps or not isinstance(error, _NEEDS_CHANGE) else _CHANGE
            command = resume_command(folder.path)
            if isinstance(error, DeviceError) and signals.received is None:
                error.run = folder.path
            error.add_note(f"the run has a checkpoint; {change}continue with\n  {command}")
        elif resumed is None and not folder.config.exists() and isinstance(error, FAILS_AGAIN):
            error.add_note(f"no step was made and no folder is kept; {_CHANGE}start the run again")
        raise


def _keep_settings(folder: RunFolder, resolved: ResolvedConfig, step: int) -> None:
    """Write the settings of a resumed run into its folder, if they have changed."""
    config = resolved.config
    if config.loop.steps < step:
        raise ConfigError(
            f"loop.steps is {config.loop.steps} but {folder.path} has done {step} steps; it is the "
            f"length of the whole run: give a larger one, such as --steps {2 * step}"
        )
    if read_config(folder.config).replace(out=config.out) != config:
        folder.write_config(resolved.toml())


def _fork(run: Run, config: RunConfig, start: str) -> None:
    """Start from a checkpoint of another run, ``RUN@STEP``."""
    name, step = split_place(start)
    parent = find_run(name)
    before = read_config(parent.settings)

    run.fork(
        checkpoint_of(parent, step),
        same_credit=_of_play(config, "credit") == _of_play(before, "credit"),
        same_evaluation=_same_evaluation(config, before),
    )


def _same_evaluation(config: RunConfig, before: RunConfig) -> bool:
    """Whether evaluations use the same plays with both settings."""
    same = all(get(config) == get(before) for get in map(attrgetter, OF_PLAYS))
    return same and _of_play(config, "options") == _of_play(before, "options")


def _of_play(settings: RunConfig, name: str) -> list[object]:
    """A setting of the plays of each arena."""
    return [getattr(one.play, name) for one in settings.arenas.values()]


def _go(
    run: Run,
    config: RunConfig,
    folder: RunFolder,
    trainer: Trainer,
    *,
    signals: StopSignals,
    serving: AbstractAsyncContextManager[object],
) -> None:
    """Train until the last step or a signal."""

    async def go(steps: Tracker, evaluations: Tracker, console: ConsoleTracker | None) -> None:
        loop, settings = asyncio.get_running_loop(), config.loop
        stall_after_s = math.inf if settings.deterministic else STALL_AFTER_S
        watch = LoopWatch(run.speed.note_lag, stall_after_s=stall_after_s, file=folder.stalls)

        def stop() -> None:
            watch.expect_end(_AT_ONCE)
            run.stop_soon(loop)

        signals.on_stop(stop)
        try:
            async with serving, shown_while(run, console, trainer.engine.stats):
                with watched(
                    lambda: trainer.model.turns,
                    folder.path,
                    loop=watch,
                    leads=has_followers(),
                    stopping=lambda: signals.received is not None,
                ):
                    await run.go(steps, evaluations)
        finally:
            signals.on_stop(None)
            # A thread of a play cannot be cancelled; with a new pool the loop does not wait for it.
            loop.set_default_executor(ThreadPoolExecutor(max_workers=1))

    kept_awake = awake() if config.loop.keep_awake else nullcontext()
    with trackers(config, folder, run.arenas) as out, kept_awake:
        quiet_collector()
        share_cores(config.training.parts_at_once)
        asyncio.run(go(*out))


def _served(config: RunConfig, trainer: Trainer) -> "ServedRun | None":
    """The HTTP server of the run, if ``loop.serve_port`` is set."""
    port = config.loop.serve_port
    if port is None:
        return None
    from legos.apps.served_run import ServedRun  # a slow import

    return ServedRun(trainer, name=Path(config.model).name, host=SERVED_AT, port=port)


def _print(*lines: str) -> None:
    """Print lines; while the console shows its table, they stand above it."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
