"""The settings of a run, from the options of ``legos train``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from legos.arena.registry import advice
from legos.config.resolve import (
    ResolvedConfig,
    is_chosen,
    knobs,
    read_config,
    resolve,
    settings_of,
)
from legos.config.schema import RunConfig
from legos.config.toml import read_sources
from legos.errors import ConfigError
from legos.run.checkpoint import read_state
from legos.run.find import find_run, split_place

__all__ = ["resolve_run"]

_KEPT = ("model", "arena", "seed", "training.lora_alpha", "training.use_dora")
_SHARED = ("model", "arena")
DEFAULT = "default"
_LORA = "training.lora_"


def resolve_run(
    files: Sequence[Path], *, resume: Path | None, overrides: Mapping[str, object]
) -> ResolvedConfig:
    """Merge defaults, the arena's recommendations, files and options.

    A resumed run keeps its folder, model, arena and seed; a forked run keeps model, LoRA and arena
    of its parent. The other settings can be changed.

    Raises:
        ConfigError: a setting is not valid, or changes what a resumed or forked run keeps.
        CheckpointError: the run to resume or the checkpoint to fork from is not found.
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
    saved, folder = run.config, run.path
    before = read_config(saved)
    if overrides.get("out") not in (None, folder):
        raise ConfigError(f"--out {overrides['out']} differs from --resume {folder}; leave it out")
    resolved = resolve(
        run=saved, files=files, overrides={**overrides, "out": folder}, recommend=advice
    )
    _check_kept(_KEPT, resolved, before, f"the run in {folder}")
    origins = read_sources(saved.read_text(encoding="utf-8"))
    sources = {
        name: origins.get(name, source) if source == f"file {saved}" else source
        for name, source in resolved.sources.items()
    }
    return replace(resolved, sources=sources)


def _forked(files: Sequence[Path], fork: str, overrides: Mapping[str, object]) -> ResolvedConfig:
    """The settings of a run that starts from a checkpoint of another run."""
    name, at = split_place(fork)
    parent = find_run(name)
    step = int(read_state(parent.checkpoint(at))["trainer"]["step"])
    start = f"{parent.path}@{step}"
    overrides = {"out": None, **overrides, "fork_from": start}
    resolved = resolve(run=parent.config, files=files, overrides=overrides, recommend=advice)
    before = read_config(parent.config)
    lora = [name for name in knobs() if name.startswith(_LORA)]
    _check_kept([*_SHARED, *lora, "training.use_dora"], resolved, before, f"{start} to fork from")
    if resolved.config.loop.steps <= step:
        raise ConfigError(
            f"loop.steps is {resolved.config.loop.steps} but {start} has done {step} steps "
            f"already; give a larger total, such as --steps {2 * step or 1}"
        )
    origins = read_sources(parent.config.read_text(encoding="utf-8"))
    sources = {
        name: _inherited(origins.get(name, DEFAULT), start)
        if source == f"file {parent.config}"
        else source
        for name, source in resolved.sources.items()
    }
    if overrides["out"] is None:
        sources["out"] = DEFAULT
    return replace(resolved, sources=sources)


def _inherited(origin: str, start: str) -> str:
    """The source of a value that a fork takes from its parent."""
    return f"run {start}" if is_chosen(origin) else origin


def _check_kept(
    names: Sequence[str], resolved: ResolvedConfig, before: RunConfig, run: str
) -> None:
    """Refuse changes of settings that a resumed or forked run keeps.

    Raises:
        ConfigError: with the setting and the source of its new value.
    """
    old, new = settings_of(before), settings_of(resolved.config)
    for name in names:
        if old[name] != new[name]:
            raise ConfigError(
                f"{name} is {new[name]!r} ({resolved.sources[name]}) but {run} has "
                f"{old[name]!r}; leave it out, or start a new run"
            )
