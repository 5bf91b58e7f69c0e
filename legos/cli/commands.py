"""The commands: each reads its options and calls one function of ``legos.apps``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from legos.cli.output import show
from legos.cli.overrides import (
    EvaluationLoopOptions,
    EvaluationPlayOptions,
    GenerationOptions,
    LoopOptions,
    PlayOptions,
    TrackOptions,
    TrainingOptions,
    dotted,
)
from legos.cli.settings import resolve_run
from legos.data.names import POLICY

__all__ = ["arenas", "bench", "chat", "doctor", "evaluate", "export", "serve", "train"]


def train(
    *,
    model: str | None = None,
    arena: str | None = None,
    steps: int | None = None,
    out: Path | None = None,
    seed: int | None = None,
    config: Annotated[tuple[Path, ...], Parameter(negative="", show_default=False)] = (),
    resume: Path | None = None,
    fork_from: str | None = None,
    deterministic: Annotated[bool | None, Parameter(negative="")] = None,
    track: Literal["wandb"] | None = None,
    serve: int | None = None,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    training: Annotated[
        TrainingOptions | None, Parameter(group=Group("Optimiser step", sort_key=3))
    ] = None,
    generation: Annotated[
        GenerationOptions | None, Parameter(group=Group("Sampling", sort_key=2))
    ] = None,
    play: Annotated[PlayOptions | None, Parameter(group=Group("Playing", sort_key=1))] = None,
    loop: Annotated[LoopOptions | None, Parameter(group=Group("Run", sort_key=0))] = None,
    tracking: Annotated[
        TrackOptions | None, Parameter(name="--track", group=Group("Numbers", sort_key=4))
    ] = None,
) -> int | None:
    """Train a model by self-play; with no options, the built-in model on nim.

    For example:

        legos train --arena kuhn --seed 1
        legos train --arena my_game.py:Race --steps 100
        legos train --model my_model --arena my_arena.py:Debate
        legos train --resume runs/nim-1 --steps 1000

    Args:
        model: A model folder, a hub name, or "builtin".
        arena: A known arena, path/to/file.py:Class, or package.module:Class.
        steps: Optimiser steps.
        out: Run folder; by default a new one under runs/.
        seed: Of everything random in the run.
        config: TOML file with settings; repeat it to lay several over each other.
        resume: Run to go on with, its folder or its name in runs/, under its own settings.
        fork_from: Start from a checkpoint of another run, RUN@STEP or RUN@best, with its settings.
        deterministic: Repeat bit for bit: no lag, one thread.
        track: Also log to Weights & Biases.
        serve: Port of 127.0.0.1 where the policy is served while it is trained; 0: a free one.
        dry_run: Print the resolved settings with their sources, check them, and stop.
        training: Settings of the optimiser step.
        generation: Settings of sampling.
        play: Settings of the arena.
        loop: Settings of the run.
        tracking: Settings of the trackers.
    """
    shorthands = {
        "--model": ("model", model),
        "--arena": ("arena", arena),
        "--steps": ("loop.steps", steps),
        "--out": ("out", out),
        "--seed": ("seed", seed),
        "--fork-from": ("fork_from", fork_from),
        "--deterministic": ("loop.deterministic", deterministic),
        "--track": ("track.wandb", "auto" if track else None),
        "--serve": ("loop.serve_port", serve),
    }
    groups = {
        "training": training,
        "generation": generation,
        "play": play,
        "loop": loop,
        "track": tracking,
    }
    resolved = resolve_run(config, resume=resume, overrides=dotted(groups, shorthands))
    resume = None if resume is None else resolved.config.out  # where the run was found
    from legos.apps.train import check
    from legos.apps.train import train as run

    check(resolved, resume=resume)
    if dry_run:
        show(resolved.toml())
        return None
    return run(resolved, resume=resume)


def evaluate(
    run: Path,
    /,
    *,
    adapter: str | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    play: Annotated[
        EvaluationPlayOptions | None, Parameter(group=Group("Playing", sort_key=0))
    ] = None,
    loop: Annotated[
        EvaluationLoopOptions | None, Parameter(group=Group("Evaluation", sort_key=1))
    ] = None,
) -> None:
    """Evaluate the newest adapter of a run, exactly where the game allows it.

    What is not given is as it was in the run.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP or RUN@best for another adapter of it.
        adapter: The same, stronger: a step, best, or the adapter's own name, such as v100.
        json: Print one JSON object.
        play: Settings of the arena.
        loop: Settings of an evaluation by play.
    """
    from legos.apps.evaluate import evaluate_run

    overrides = dotted({"play": play, "loop": loop}, {})
    figures = evaluate_run(run, adapter, overrides=overrides)
    known = {name: figure for name, figure in figures.items() if figure is not None}
    show(figures if json else known, json=json)


def serve(
    *,
    model: str | None = None,
    adapter: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: Annotated[str | None, Parameter(env_var="LEGOS_API_KEY", show_env_var=True)] = None,
    max_batch: int = 256,
    max_queue: int = 1024,
    timeout_s: float = 600.0,
    max_body_mb: float = 4.0,
    adapter_folder: Path | None = None,
    max_adapters: int = 64,
    drain_s: float = 30.0,
    log_prompts: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Serve a model and its adapters over an OpenAI-compatible HTTP interface.

    Args:
        model: A model folder, a hub name, or "builtin"; by default what the adapters belong to.
        adapter: RUN, RUN@STEP, RUN@best or an adapter folder, live as "policy"; NAME=RUN names it;
            repeat it for several.
        host: Address to listen on; others than loopback need an API key.
        port: Port to listen on; 0 picks a free one.
        api_key: Asked of every request, as a bearer token.
        max_batch: Completions decoded at once.
        max_queue: Completions that may wait; beyond it requests are answered with 429.
        timeout_s: Longest time for one answer, seconds.
        max_body_mb: Largest body of a request that loads no adapter, MiB.
        adapter_folder: Folder below which adapters may be loaded by path.
        max_adapters: Adapters that may be live at once; beyond it loads are answered with 409.
        drain_s: How long running requests may take to end after SIGTERM, seconds.
        log_prompts: Write prompts into the log.
    """
    from legos.apps.serve import serve as run
    from legos.server.options import ServerOptions

    options = ServerOptions.for_host(
        host,
        api_key=api_key,
        max_running=max_batch,
        max_queue=max_queue,
        request_timeout_s=timeout_s,
        max_body_bytes=int(max_body_mb * 2**20),
        adapter_folder=adapter_folder,
        max_adapters=max_adapters,
        log_prompts=log_prompts,
    )
    run(
        model=model,
        adapters=adapter,
        host=host,
        port=port,
        options=options,
        drain_s=drain_s,
        say=show,
    )


def chat(
    *,
    url: str | None = None,
    model: str | None = None,
    api_key: Annotated[str | None, Parameter(env_var="LEGOS_API_KEY", show_default=False)] = None,
    adapter: str = POLICY,
    system: str = "",
    temperature: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
) -> int:
    """Talk to a model in the terminal; without a URL, to one in this process.

    Args:
        url: Address of a server, such as http://localhost:8000/v1.
        model: A model folder, a hub name, or "builtin"; by default what the adapter belongs to.
            With a URL, the model's name there.
        api_key: Key of the server.
        adapter: RUN, RUN@STEP, RUN@best, an adapter folder, or base; with a URL, a name there, such
            as policy, policy@12 or base.
        system: What is said before everything else.
        temperature: Of the answers; 0 takes the most probable token.
        max_tokens: Longest answer, tokens; by default 512, of the built-in model 32.
        seed: Makes the answers repeat.
    """
    from legos.apps.chat import chat as run

    return run(
        url=url,
        model=model,
        api_key=api_key if url is not None else None,
        adapter=adapter,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
    )


def bench(
    name: str = "loop",
    /,
    *,
    seconds: float = 60.0,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Measure a part of the kit on this machine.

    Args:
        name: What to measure: engine, loop, server or train.
        seconds: How long to measure at most.
        json: Print one JSON object.
    """
    from legos.apps.bench import bench as run
    from legos.apps.bench import explained

    figures = run(name, seconds)
    show(figures if json else explained(figures), json=json)


def arenas(*, json: Annotated[bool, Parameter(negative="", show_default=False)] = False) -> None:
    """List the arenas that --arena knows by name.

    Args:
        json: Print one JSON object.
    """
    from legos.apps.arenas import list_arenas

    show(list_arenas(), json=json)


def export(
    run: str,
    /,
    *,
    to: Path,
    format: Literal["mlx", "peft", "fused"] = "peft",
    adapter: str | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Write the newest adapter of a run for another program.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP or RUN@best for another adapter of it.
        to: New folder to write.
        format: mlx-lm's adapter, PEFT's adapter, or a whole model with the adapter merged.
        adapter: The same, stronger: a step, best, or the adapter's own name, such as v100.
        json: Print one JSON object.
    """
    from legos.apps.export import export as write

    show(write(run, to=to, form=format, adapter=adapter), json=json)


def doctor(
    *,
    self_test: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    model: str = "small",
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Tell what this machine is, and check that its device computes what it should.

    Args:
        self_test: Run the checks, up to a minute; the exit code is 1 where one fails.
        model: What they run on: a model folder, a hub name, "builtin", or "small", made for it.
        json: Print one JSON object.
    """
    from legos.apps.doctor import examine

    report = examine(self_test=self_test, model=model)
    show(report.as_dict() if json else report.text(), json=json)
    return 0 if report.healthy else 1
