"""The commands: each parses its options and calls one function of ``legos.apps``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from legos.cli.backends import NOT_OF_LEGOS, refuse_unused, serve_with_vllm
from legos.cli.output import Flag, show
from legos.cli.overrides import (
    EvaluationLoopOptions,
    GenerationOptions,
    LoopOptions,
    PlayOptions,
    PlaySettings,
    TrackOptions,
    TrainingOptions,
    dotted,
    shares,
)
from legos.cli.run_settings import resolve_run
from legos.config.resolve import ResolvedConfig
from legos.errors import ConfigError
from legos.records.names import POLICY

__all__ = ["bench", "chat", "doctor", "evaluate", "export", "serve", "train"]

Several = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
Training = Annotated[TrainingOptions | None, Parameter(group=Group("Optimiser step", sort_key=3))]
Generation = Annotated[GenerationOptions | None, Parameter(group=Group("Sampling", sort_key=2))]
Key = Annotated[str | None, Parameter(env_var="LEGOS_API_KEY", show_env_var=True)]


def train(
    *,
    model: str | None = None,
    arena: str | None = None,
    mix: Several = (),
    device: str | None = None,
    engine: Literal["device", "vllm"] | None = None,
    server: Several = (),
    adapter_folder: Path | None = None,
    vllm_bin: Path | None = None,
    ray: str | None = None,
    players: int | None = None,
    engines: int | None = None,
    steps: int | None = None,
    out: Path | None = None,
    seed: int | None = None,
    config: Annotated[tuple[Path, ...], Parameter(negative="", show_default=False)] = (),
    resume: Path | None = None,
    fork_from: str | None = None,
    deterministic: Annotated[bool | None, Parameter(negative="")] = None,
    track: Literal["wandb"] | None = None,
    serve: int | None = None,
    dry_run: Flag = False,
    training: Training = None,
    generation: Generation = None,
    play: Annotated[PlayOptions | None, Parameter(group=Group("Playing", sort_key=1))] = None,
    loop: Annotated[LoopOptions | None, Parameter(group=Group("Run", sort_key=0))] = None,
    tracking: Annotated[
        TrackOptions | None, Parameter(name="--track", group=Group("Numbers", sort_key=4))
    ] = None,
) -> int | None:
    """Train a model by self-play; without options, the built-in model on nim.

    For example:

        legos train --arena kuhn --seed 1
        legos train --arena my_game.py:Race --steps 100
        legos train --model my_model --arena my_arena.py:Debate
        legos train --mix nim=0.5 --mix kuhn=0.5
        legos train --resume runs/nim-1 --steps 1000

    Args:
        model: A model folder, a name on the hub, or "builtin".
        arena: A known arena, path/to/file.py:Class, or package.module:Class.
        mix: Several arenas in place of one, each with its share of the trained tokens, NAME=SHARE
            (may be repeated). Their settings stand in a file: [mix.NAME].
        device: Library that trains: mlx, or torch, which needs the extra torch and another engine.
        engine: What generates: the device in this process, or vLLM, which is started.
        server: Address of a running server that generates, `legos serve` (may be repeated) or
            vLLM. Its API key is read from LEGOS_API_KEY.
        adapter_folder: Folder shared with the servers, through which they get adapters.
        vllm_bin: The vllm program; by default LEGOS_VLLM_BIN, or vllm on PATH.
        ray: Ray cluster that plays and generates: local, auto, or HOST:PORT.
        players: Processes of the cluster that play; 0: plays run in this process.
        engines: Engines of the cluster; by default one, unless a server is given.
        steps: Length of the run, in optimiser steps.
        out: Run folder; by default a new one under runs/.
        seed: Seed of every random draw of the run.
        config: TOML file with settings; may be repeated, later files win.
        resume: Run to continue with its own settings: its folder, or its name in runs/.
        fork_from: Start from a checkpoint of another run, RUN@STEP or RUN@best, with its settings.
        deterministic: Make the run repeat bit for bit: no lag, one thread.
        track: Also log to Weights & Biases.
        serve: Port of 127.0.0.1 at which the policy can be asked while it trains; 0: a free port.
        dry_run: Check the settings, print each with its source, and stop.
        training: Settings of the optimiser step.
        generation: Settings of sampling.
        play: Settings of the arena.
        loop: Settings of the run.
        tracking: Settings of the trackers.
    """
    shorthands = {
        "--model": ("model", model),
        "--arena": ("arena", arena),
        "--device": ("device", device),
        "--engine": ("engine", engine),
        "--server": ("server", server or None),
        "--adapter-folder": ("adapter_folder", adapter_folder),
        "--vllm-bin": ("vllm_bin", vllm_bin),
        "--ray": ("ray", ray),
        "--players": ("players", players),
        "--engines": ("engines", engines),
        "--steps": ("loop.steps", steps),
        "--out": ("out", out),
        "--seed": ("seed", seed),
        "--fork-from": ("fork_from", fork_from),
        "--deterministic": ("loop.deterministic", deterministic),
        "--track": ("track.wandb", "auto" if track else None),
        "--serve": ("loop.serve_port", serve),
    }
    groups = {"training": training, "generation": generation, "play": play, "loop": loop}
    groups["track"] = tracking
    overrides = {**shares(mix), **dotted(groups, shorthands)}
    resolved = resolve_run(config, resume=resume, overrides=overrides)
    resume = None if resume is None else resolved.config.out  # a name is now a folder
    return _train(resolved, resume, dry_run=dry_run)


def _train(resolved: ResolvedConfig, resume: Path | None, *, dry_run: bool) -> int | None:
    from legos.apps.train import check, train  # imports MLX, which takes a second
    from legos.wiring.defaults import computed
    from legos.wiring.model import follow

    if not dry_run and follow(resolved.config.device, resolved.config.model):
        return None  # the first process has the run folder
    check(resolved, resume=resume)
    if dry_run:
        return show(resolved.toml(computed(resolved.config)))
    return train(resolved, resume=resume)


def evaluate(
    run: str,
    /,
    *,
    adapter: str | None = None,
    json: Flag = False,
    play: PlaySettings = None,
    loop: Annotated[
        EvaluationLoopOptions | None, Parameter(group=Group("Evaluation", sort_key=1))
    ] = None,
) -> None:
    """Evaluate the newest adapter of a run, exactly where the game allows it.

    Settings that are not given keep the values of the run.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP, RUN@best or RUN@vN for another adapter.
        adapter: Evaluate this one on the run's arena: an adapter folder, or another run.
        json: Print one JSON object.
        play: Settings of the arena.
        loop: Settings of evaluation plays.
    """
    from legos.apps.evaluate import evaluate_run

    figures = evaluate_run(run, adapter=adapter, overrides=dotted({"play": play, "loop": loop}, {}))
    known = {name: figure for name, figure in figures.items() if figure is not None}
    show(figures if json else known, json=json)


def serve(
    *,
    model: str | None = None,
    adapter: Several = (),
    backend: Literal["legos", "vllm"] = "legos",
    vllm_bin: Path | None = None,
    vllm_arguments: Several = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: Key = None,
    replicas: int = 1,
    max_batch: int = 256,
    memory_limit_gib: float | None = None,
    max_queue: int = 1024,
    timeout_s: float = 600.0,
    max_body_mb: float = 4.0,
    adapter_folder: Path | None = None,
    max_adapters: int = 64,
    drain_s: float = 30.0,
    keep_awake: bool = True,
    log_prompts: Flag = False,
) -> None:
    """Serve a model and its adapters over an OpenAI-compatible HTTP interface.

    Args:
        model: A model folder, a name on the hub, or "builtin"; by default the model that the
            adapters were trained on.
        adapter: RUN, RUN@STEP, RUN@best or an adapter folder, served as "policy", or under another
            name as NAME=RUN; may be repeated.
        backend: Serve with the engine of legos, or start vLLM and serve with it.
        vllm_bin: The vllm program; by default LEGOS_VLLM_BIN, or vllm on PATH.
        vllm_arguments: Further arguments of vllm serve, such as "--tensor-parallel-size 2"; may be
            repeated.
        host: Address to listen on; addresses other than loopback need an API key.
        port: Port to listen on; 0: a free port.
        api_key: Key that every request must send as a bearer token.
        replicas: Engines behind the address, each in a process of its own with its own weights.
        max_batch: Completions decoded in one batch (of each replica).
        memory_limit_gib: Memory that the engine may use in all; by default most of the machine's.
        max_queue: Completions that may wait; further requests get status 429.
        timeout_s: Time limit of one request, in seconds.
        max_body_mb: Size limit of a request body, in MiB; uploads of adapters have their own.
        adapter_folder: Folder below which adapters may be loaded by path.
        max_adapters: Adapters that may be live at the same time; further loads get status 409.
        drain_s: Time that running requests get to finish after SIGTERM, in seconds.
        keep_awake: Keep macOS from sleeping while the server runs.
        log_prompts: Write prompts to the log.
    """
    given = locals()
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
    if backend == "vllm":
        serve_with_vllm(serve, given)
        return
    refuse_unused(serve, given, NOT_OF_LEGOS, "--backend legos")
    run(
        model=model,
        adapters=adapter,
        replicas=replicas,
        host=host,
        port=port,
        options=options,
        memory_gib=memory_limit_gib,
        drain_s=drain_s,
        keep_awake=keep_awake,
        say=show,
    )


def chat(
    *,
    url: str | None = None,
    model: str | None = None,
    api_key: Key = None,
    adapter: str = POLICY,
    system: str = "",
    temperature: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
) -> int:
    """Chat with a model in the terminal: one in this process or, with --url, one on a server.

    Args:
        url: Address of a server, such as http://localhost:8000/v1.
        model: A model folder, a name on the hub, or "builtin"; by default the model that the
            adapter was trained on. With --url, the name of the model on the server.
        api_key: API key of the server.
        adapter: RUN, RUN@STEP, RUN@best, an adapter folder, or base. With --url, the name of an
            adapter on the server, such as policy, policy@12 or base.
        system: System message at the start of the conversation.
        temperature: Sampling temperature; 0: the most probable token.
        max_tokens: Longest answer, in tokens; by default 512, or 32 with the built-in model.
        seed: Seed of the answers; the same seed gives the same answers.
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


def bench(*, model: str | None = None, seconds: float = 60.0, json: Flag = False) -> None:
    """Measure how fast a model is on this machine, beside mlx-lm alone: a table to post.

    Prefill and decoding with 1, 8 and 32 streams, an optimiser step with its peak of memory, and an
    adapter swap. Both sides are measured in turn.

    Args:
        model: Folder, name on the hub, or builtin; by default random weights, 40 million
            parameters.
        seconds: Time to measure, roughly, in seconds; slow models take longer.
        json: Print one JSON object.
    """
    from legos.apps.bench import bench as run

    found = run(model, seconds, write=(lambda _: None) if json else show)
    facts = {name: value for name, value in found.items() if name != "lines"}
    show(found if json else facts, json=json)


def export(
    run: str, /, *, to: Path, format: Literal["mlx", "peft", "fused"] = "peft", json: Flag = False
) -> None:
    """Write the newest adapter of a run in the format of another program.

    Args:
        run: Run folder, or its name in runs/; RUN@STEP, RUN@best or RUN@vN for another adapter.
        to: Folder to write; it must be new or empty.
        format: An adapter for mlx-lm, an adapter for PEFT, or a whole model with the adapter
            merged (fused).
        json: Print one JSON object.
    """
    from legos.apps.export import export as write

    show(write(run, to=to, form=format), json=json)


def doctor(
    *architectures: str,
    self_test: Flag = False,
    long: Flag = False,
    model: str = "small",
    models: Flag = False,
    fits: Annotated[Path | None, Parameter(show_default=False)] = None,
    json: Flag = False,
) -> int:
    """Report facts about this machine, and check that its device computes correctly.

    Args:
        architectures: With --models, the architectures to check, such as llama or gemma3n.
        self_test: Run the checks, which take some seconds; exit code 1 if one fails.
        long: With --self-test, let engine and trainer compute together for a minute, to see
            growing memory.
        model: Model for the checks: a folder, a name on the hub, "builtin", or "small" (random
            weights).
        models: Load a small random model of every architecture of mlx-lm, or of the given ones,
            as a run does, which takes a second for each, and print what legos can do with it; exit
            code 1 if one fails without a refusal.
        fits: Print instead, for the models of a JSON file (name: content of config.json), the
            longest rows that can be trained on Macs of each size.
        json: Print one JSON object.
    """
    if models:
        from legos.apps.doctor import try_architectures

        if json:
            rows = try_architectures(architectures)
            show({"architectures": {row.pop("architecture"): row for row in rows}}, json=True)
        else:
            rows = try_architectures(architectures, show=show)
        return 1 if any("error" in row.values() for row in rows) else 0
    if architectures:
        raise ConfigError(f"{architectures[0]!r} is not expected here, only after --models")
    if long and not self_test:
        raise ConfigError("--long is for the checks; give --self-test too")
    from legos.apps.doctor import examine, mac_table

    if fits is not None:
        show(mac_table(fits))
        return 0
    report = examine(self_test=self_test, long=long, model=model)
    show(report.as_dict() if json else report.facts, json=json)
    if not json:
        show(report.text())
    return 0 if report.healthy else 1
