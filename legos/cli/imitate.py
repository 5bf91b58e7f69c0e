"""``legos imitate``: supervised training on answers."""

from typing import Any

from legos.cli.output import Flag
from legos.cli.overrides import Files, Integer, Limit, Loop, Play, Run, Track, Training, dotted
from legos.cli.run_settings import resolve_run
from legos.cli.train import start
from legos.config.resolve import resolve


def imitate(
    data: str,
    /,
    *,
    run: Run = None,
    epochs: Limit = 1.0,
    steps: Integer | None = None,
    min_reward: float | None = None,
    config: Files = (),
    dry_run: Flag = False,
    training: Training = None,
    play: Play = None,
    loop: Loop = None,
    tracking: Track = None,
) -> int | None:
    """Train a model to give the answers of a file, or the best answers of a run.

    A tenth of the answers is held out and evaluated. Continue it as any run, with legos train
    --resume, and improve what it has learned with legos train --adapter. For example:

        legos imitate chats.jsonl --model MODEL
        legos imitate sums-1 --min-reward 1
        legos train --adapter imitation-1 --arena my_arena.py:Debate

    Args:
        data: File of rows, or a data set of the hub, with messages, or with prompt and completion;
            or a run: its folder, or its name in runs/.
        run: What the run trains, and where it is kept; the model of an imitated run is its own.
        epochs: How often each answer is trained on, unless --steps is given.
        steps: Length of the run, in optimiser steps.
        min_reward: Of a run, imitate seats that earned at least this; by default 1.
        config: TOML file with settings; may be repeated, later files win.
        dry_run: Check the data and the settings, print each with its source, and stop.
        training: Settings of the optimiser step.
        play: Settings of the arena.
        loop: Settings of the run.
        tracking: Settings of the trackers.
    """
    from legos.apps.imitate import (  # imports the arenas
        SETTINGS,
        model_of,
        num_steps,
        played_with,
        read_answers,
    )

    groups = {"": run, "training": training, "play": play, "loop": loop, "track": tracking}
    shorthands = {
        "--steps": ("loop.steps", steps),
        "--min-reward": ("play.options.min_reward", min_reward),
    }
    overrides: dict[str, Any] = {
        **SETTINGS,
        "play.options.data": data,
        **dotted(groups, shorthands),
    }
    asked = resolve(files=config, overrides=overrides)
    model = None if asked.sources["model"] == "default" else asked.config.model
    if (found := model_of(data, model)) is not None and model is None:
        overrides["model"] = found
    if (played := played_with(data)) and asked.sources["generation.thinking"] == "default":
        overrides["generation.thinking"] = played.generation.thinking  # as its prompts are
    if asked.sources["loop.steps"] == "default":
        overrides["loop.steps"] = num_steps(asked.config, epochs)
    elif dry_run:
        read_answers(asked.config)
    resolved = resolve_run(config, resume=None, overrides=overrides)
    return start(resolved, None, dry_run=dry_run)
