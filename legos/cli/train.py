"""``legos train``: train a model by self-play."""

import os
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec import to_builtins

from legos.cli.output import Flag, show
from legos.cli.overrides import (
    Files,
    Generation,
    Integer,
    League,
    Loop,
    Play,
    Run,
    Several,
    Track,
    Training,
    dotted,
    shares,
)
from legos.cli.run_settings import resolve_run
from legos.config.resolve import ResolvedConfig, settings_of
from legos.errors import ArenaError, CheckpointError


def train(
    *,
    run: Run = None,
    mix: Several = (),
    steps: Integer | None = None,
    config: Files = (),
    resume: Path | None = None,
    deterministic: Annotated[bool | None, Parameter(negative="")] = None,
    track: Literal["wandb"] | None = None,
    serve: Integer | None = None,
    view: Flag = False,
    dry_run: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
    training: Training = None,
    generation: Generation = None,
    play: Play = None,
    league: League = None,
    loop: Loop = None,
    tracking: Track = None,
) -> int | None:
    """Train a model by self-play; without options, the built-in model on nim.

    For example:

        legos train --arena kuhn --play.opponents self=0.5 --play.opponents past=0.5
        legos train --arena my_game.py:Race --steps 100
        legos train --model my_model --arena my_arena.py:Debate
        legos train --mix nim=0.5 --mix kuhn=0.5
        legos train --resume runs/nim-1 --steps 1000

    Args:
        run: What the run trains, where it plays, and where it is kept.
        mix: Several arenas in place of one, each with its share of the trained tokens, NAME=SHARE
            (may be repeated). Their settings stand in a file: [mix.NAME].
        steps: Length of the run, in optimiser steps.
        config: TOML file with settings; may be repeated, later files win.
        resume: Run to continue with its own settings: its folder, or its name in runs/.
        deterministic: Make the run repeat bit for bit: no lag, one thread.
        track: Also log to Weights & Biases.
        serve: Port of 127.0.0.1 at which the policy can be asked while it trains; 0: a free port.
        view: Show the run on a local page while it trains; see legos view.
        dry_run: Check the settings, print each with its source, and stop.
        quiet: Print nothing but warnings and errors.
        json: Print one JSON object at the end, as legos runs show does, or the settings of a dry
            run; all else goes to standard error.
        training: Settings of the optimiser step.
        generation: Settings of sampling.
        play: Settings of the arena.
        league: Settings of the snapshots that play.opponents draws from.
        loop: Settings of the run.
        tracking: Settings of the trackers.
    """
    groups = {"": run, "training": training, "generation": generation, "play": play, "loop": loop}
    groups |= {"league": league, "track": tracking}
    shorthands = {
        "--steps": ("loop.steps", steps),
        "--deterministic": ("loop.deterministic", deterministic),
        "--track": ("track.wandb", "auto" if track else None),
        "--serve": ("loop.serve_port", serve),
    }
    overrides = {**shares(mix), **dotted(groups, shorthands)}
    try:
        resolved = resolve_run(config, resume=resume, overrides=overrides)
    except (ArenaError, CheckpointError):
        from legos.wiring.model import follow, launched

        if dry_run or not launched()[1] or "model" not in overrides:
            raise
        # The run, its adapter or its arena may be on the machine of the first process alone.
        follow(None, str(overrides["model"]))
        return None
    resume = None if resume is None else resolved.config.out  # a name is now a folder
    return start(resolved, resume, view=view, dry_run=dry_run, quiet=quiet, json=json)


def start(
    resolved: ResolvedConfig,
    resume: Path | None,
    *,
    dry_run: bool,
    view: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int | None:
    """Check the settings and train, or with ``dry_run`` print them.

    Args:
        resolved: the settings.
        resume: folder of the run to continue; None: a new run.
        view: whether a local page shows the run meanwhile.
        dry_run: only print the settings.
        quiet: whether only warnings and errors are printed.
        json: whether a JSON object describes the run at the end, or has the settings.

    Returns:
        Exit code; None: nothing was trained by this process.
    """
    from legos.apps.runs import describe_run
    from legos.apps.train import check, train  # imports MLX, which takes a second
    from legos.wiring.model import follow

    if not dry_run and follow(resolved.config.device, resolved.config.model):
        return None  # the first process has the run folder
    check(resolved, resume=resume)
    if dry_run:
        if not json:
            return show(resolved.toml())
        values = to_builtins(settings_of(resolved.config), enc_hook=str)
        sources = resolved.sources
        rows = {name: {"value": value, "source": sources[name]} for name, value in values.items()}
        return show(rows, json=True)
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere) if quiet else nullcontext(),
    ):
        code, folder = train(resolved, resume=resume, view=view)
    if json:
        show(describe_run(str(folder)), json=True)
    return code
