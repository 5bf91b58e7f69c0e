"""The settings of a run, from the options of ``legos train``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from legos.arena.registry import advice
from legos.config.resolve import ResolvedConfig, is_chosen, knobs, read_config, resolve, settings_of
from legos.errors import ConfigError
from legos.run.checkpoint import read_state
from legos.run.find import checkpoint_of, find_adapter, find_run, split_place
from legos.run.folder import RunFolder
from legos.weights.folder import read_adapter

_LORA = tuple(name for name in knobs() if name.startswith("training.lora_"))
_SHARED = ("model", "arena", "adapter", "generation.thinking", *_LORA)
_KEPT = (*_SHARED, "seed")


def resolve_run(
    files: Sequence[Path], *, resume: Path | None, overrides: Mapping[str, object]
) -> ResolvedConfig:
    """Merge defaults, the arena's recommendations, files and options.

    A resumed run keeps its folder, model, first adapter, arenas, thinking, LoRA, seed and credit
    rule; a forked run keeps those of its parent but folder, seed and credit rule. The other
    settings can be changed, but a checkpoint fits no exploiter that joins the opponents.

    A new run that starts from an adapter has the model that the adapter was trained on, and its
    prompts ask for the same thinking, unless it is given others.

    Raises:
        ConfigError: a setting is not valid, or changes what a resumed or forked run keeps.
        CheckpointError: the run to resume, the checkpoint to fork from or the adapter to start from
            is not found.
        ArenaError: the arena is not found.
    """
    fork = overrides.get("fork_from")
    if resume is not None and fork is not None:
        raise ConfigError(
            "--resume continues a run and --fork-from starts a new one; give one of them"
        )
    if resume is not None:
        return _resumed(files, resume, overrides)
    if fork is not None:
        return _forked(files, str(fork), overrides)
    resolved = resolve(files=files, overrides=overrides, recommend=advice)
    adapter = resolved.config.adapter
    if adapter is not None:
        start = read_adapter(find_adapter(adapter))
        own = {"model": start.base_model, "generation.thinking": start.thinking}
        kept = {
            name: value
            for name, value in own.items()
            if value is not None and not is_chosen(resolved.sources[name])
        }
        if kept:
            resolved = resolve(files=files, overrides={**overrides, **kept}, recommend=advice)
            sources = {**resolved.sources, **dict.fromkeys(kept, f"adapter {adapter}")}
            resolved = replace(resolved, sources=sources)
    if resolved.config.fork_from is not None:
        raise ConfigError(
            f"fork_from is {resolved.config.fork_from!r} ({resolved.sources['fork_from']}); give "
            "it on the command line, --fork-from RUN@STEP, or remove it"
        )
    return resolved


def _resumed(
    files: Sequence[Path], resume: Path, overrides: Mapping[str, object]
) -> ResolvedConfig:
    """The settings of a resumed run; ``out`` is the folder in which it was found."""
    run = find_run(resume, purpose=" to resume")
    if overrides.get("out") not in (None, run.path):
        raise ConfigError(
            f"--out {overrides['out']} differs from --resume {run.path}; leave it out"
        )
    overrides = {**overrides, "out": run.path}
    resolved = resolve(run=run.settings, files=files, overrides=overrides)  # no new advice
    _check_kept(run, resolved, keep=_KEPT, what=f"the run in {run.path}")
    before = read_config(run.settings).arenas
    for name, one in resolved.config.arenas.items():
        if one.play.credit != before[name].play.credit:
            raise ConfigError(
                f"play.credit of {name} is {one.play.credit!r} but the run in {run.path} has "
                f"{before[name].play.credit!r}, whose state and waiting samples do not fit; leave "
                f"it out, or start a fork: --fork-from {run.path}"
            )
    return resolved


def _forked(files: Sequence[Path], fork: str, overrides: Mapping[str, object]) -> ResolvedConfig:
    """The settings of a run that starts from a checkpoint of another run."""
    name, at = split_place(fork)
    parent = find_run(name)
    step = int(read_state(checkpoint_of(parent, at))["trainer"]["step"])
    start = f"{parent.path}@{step}"
    parents = f"run {start}"  # source of the settings that it has from there
    overrides = {**overrides, "fork_from": start}
    resolved = resolve(
        run=parent.settings,
        files=files,
        overrides=overrides,
        inherit=lambda source: parents if is_chosen(source) else source,
    )
    _check_kept(parent, resolved, keep=_SHARED, what=f"{start} to fork from")
    if resolved.config.loop.steps <= step:
        raise ConfigError(
            f"loop.steps is {resolved.config.loop.steps} but {start} has done {step} steps "
            f"already; give a larger total, such as --steps {2 * step or 1}"
        )
    if is_chosen(out := resolved.sources["out"]) and out != parents:
        return resolved
    sources = {**resolved.sources, "out": "default"}  # and not the folder of the other run
    return replace(resolved, config=resolved.config.replace(out=None), sources=sources)


def _check_kept(
    run: RunFolder, resolved: ResolvedConfig, *, keep: Sequence[str], what: str
) -> None:
    """Refuse changes of a run's settings that must not change.

    Args:
        run: the run.
        resolved: its settings, with files and options over them.
        keep: settings that must not change, besides the arenas of a mix.
        what: name of the run in messages.

    Raises:
        ConfigError: a setting of ``keep`` changes; with the source of its new value.
    """
    former = read_config(run.settings)
    old, new = settings_of(former), settings_of(resolved.config)
    before, after = former.mix, resolved.config.mix
    if list(before) != list(after):
        raise ConfigError(
            f"mix names {', '.join(after)} but {what} has {', '.join(before) or 'one arena'}; "
            "name the same arenas, or start a new run"
        )
    for name in keep:
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{name} is {new[name]!r} ({resolved.sources[name]}) but {what} has "
                f"{old[name]!r}; leave it out, or start a new run"
            )
