"""From the options of ``legos train`` to the resolved settings of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from legos.arena.registry import advice
from legos.config.resolve import ResolvedConfig, read_config, resolve
from legos.config.toml import read_sources
from legos.errors import CheckpointError, ConfigError

__all__ = ["resolve_run"]

_KEPT = ("model", "arena", "seed")


def resolve_run(
    files: Sequence[Path], *, resume: Path | None, overrides: Mapping[str, object]
) -> ResolvedConfig:
    """Lay defaults, the arena's advice, files and options over each other.

    A resumed run keeps its folder, model, arena and seed; its other settings can be changed.

    Raises:
        ConfigError: the settings are not valid, or would make the resumed run another one.
        CheckpointError: the folder to resume holds no run.
        ArenaError: there is no such arena.
    """
    if resume is None:
        return resolve(files=files, overrides=overrides, recommend=advice)
    saved = resume / "config.toml"
    if not saved.is_file():
        raise CheckpointError(f"{resume} holds no run to resume: it has no config.toml")
    before = read_config(saved)
    if overrides.get("out") not in (None, resume):
        raise ConfigError(f"--out {overrides['out']} differs from --resume {resume}; leave it out")
    resolved = resolve(
        files=[saved, *files], overrides={**overrides, "out": resume}, recommend=advice
    )
    for name in _KEPT:
        was, now = getattr(before, name), getattr(resolved.config, name)
        if was != now:
            raise ConfigError(
                f"{name} is {now!r} ({resolved.sources[name]}) but the run in {resume} has "
                f"{was!r}; leave it out, or start a new run"
            )
    origins = read_sources(saved.read_text(encoding="utf-8"))
    sources = {
        name: origins.get(name, source) if source == f"file {saved}" else source
        for name, source in resolved.sources.items()
    }
    return replace(resolved, sources=sources)
