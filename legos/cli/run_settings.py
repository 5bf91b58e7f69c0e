"""The settings of a run, from the options of ``legos train``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from legos.arena.registry import advice
from legos.config.resolve import ResolvedConfig, read_config, resolve, settings_of
from legos.config.toml import read_sources
from legos.errors import ConfigError
from legos.run.find import find_adapter, find_run
from legos.weights.folder import read_adapter

__all__ = ["resolve_run"]

_KEPT = ("model", "arena", "seed", "adapter", "training.lora_alpha")


def resolve_run(
    files: Sequence[Path], *, resume: Path | None, overrides: Mapping[str, object]
) -> ResolvedConfig:
    """Merge defaults, the arena's recommendations, files and options.

    A resumed run keeps its folder, model, arena and seed; the other settings can be changed.

    A new run that starts from an adapter has the model that the adapter was trained on, unless it
    is given another one.

    Raises:
        ConfigError: a setting is not valid, or changes what a resumed run keeps.
        CheckpointError: the run to resume, or the adapter to start from, is not found.
        ArenaError: the arena is not found.
    """
    if resume is not None:
        return _resumed(files, resume, overrides)
    resolved = resolve(files=files, overrides=overrides, recommend=advice)
    if resolved.config.adapter is not None and resolved.sources["model"] == "default":
        base = read_adapter(find_adapter(resolved.config.adapter)).base_model
        overrides = {**overrides, "model": base or resolved.config.model}
        resolved = resolve(files=files, overrides=overrides, recommend=advice)
    return resolved


def _resumed(
    files: Sequence[Path], resume: Path, overrides: Mapping[str, object]
) -> ResolvedConfig:
    """The settings of a resumed run, with files and options over them.

    Args:
        files: TOML files; they win over the run.
        resume: the run; ``out`` is the folder in which it was found.
        overrides: options; they win over everything.

    Raises:
        ConfigError: a setting that the run keeps changes; with the source of its new value.
    """
    run = find_run(resume, purpose=" to resume")
    if overrides.get("out") not in (None, run.path):
        raise ConfigError(
            f"--out {overrides['out']} differs from --resume {run.path}; leave it out"
        )
    settings, what = run.settings, f"the run in {run.path}"
    # no new advice
    resolved = resolve(run=settings, files=files, overrides={**overrides, "out": run.path})
    former = read_config(settings)
    old, new = settings_of(former), settings_of(resolved.config)
    before, after = former.mix, resolved.config.mix
    if list(before) != list(after):
        raise ConfigError(
            f"mix names {', '.join(after)} but {what} has {', '.join(before) or 'one arena'}; "
            "name the same arenas, or start a new run"
        )
    for name in _KEPT:
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{name} is {new[name]!r} ({resolved.sources[name]}) but {what} has "
                f"{old[name]!r}; leave it out, or start a new run"
            )
    origins = read_sources(settings.read_text(encoding="utf-8"))
    sources = {
        name: origins.get(name, source) if source == f"file {settings}" else source
        for name, source in resolved.sources.items()
    }
    return replace(resolved, sources=sources)
