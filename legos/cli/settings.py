"""From the options of ``legos train`` to the resolved settings of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from legos.arena.registry import advice
from legos.config.resolve import ResolvedConfig, is_chosen, knobs, read_config, resolve
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
    """Lay defaults, the arena's advice, files and options over each other.

    A resumed run keeps its folder, model, arena and seed, a forked one model, LoRA and arena of the
    run that it starts from; the other settings can be changed.

    Raises:
        ConfigError: the settings are not valid, or would make the resumed run another one.
        CheckpointError: the folder to resume holds no run, or the one to fork no such checkpoint.
        ArenaError: there is no such arena.
    """
    fork = overrides.get("fork_from")
    if resume is not None and fork is not None:
        raise ConfigError(
            "--resume goes on with a run and --fork-from starts one; give one of them"
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
    """The settings with which a run goes on; ``out`` is where it was found."""
    run = find_run(resume, purpose=" to resume")
    saved, place = run.config, run.path
    before = read_config(saved)
    if overrides.get("out") not in (None, place):
        raise ConfigError(f"--out {overrides['out']} differs from --resume {place}; leave it out")
    resolved = resolve(
        run=saved, files=files, overrides={**overrides, "out": place}, recommend=advice
    )
    _check_kept(_KEPT, resolved, before, f"the run in {place}")
    origins = read_sources(saved.read_text(encoding="utf-8"))
    sources = {
        name: origins.get(name, source) if source == f"file {saved}" else source
        for name, source in resolved.sources.items()
    }
    return replace(resolved, sources=sources)


def _forked(files: Sequence[Path], fork: str, overrides: Mapping[str, object]) -> ResolvedConfig:
    """The settings of a run that starts from a checkpoint of another one."""
    name, at = split_place(fork)
    parent = find_run(name)
    step = int(read_state(parent.checkpoint(at))["trainer"]["step"])
    place = f"{parent.path}@{step}"
    given = {"out": None, **overrides, "fork_from": place}
    resolved = resolve(run=parent.config, files=files, overrides=given, recommend=advice)
    before = read_config(parent.config)
    lora = [name for name in knobs() if name.startswith(_LORA)]
    _check_kept([*_SHARED, *lora, "training.use_dora"], resolved, before, f"{place} to fork from")
    if resolved.config.loop.steps <= step:
        raise ConfigError(
            f"loop.steps is {resolved.config.loop.steps} but {place} has done {step} steps "
            f"already; ask for more in all, such as --steps {2 * step or 1}"
        )
    origins = read_sources(parent.config.read_text(encoding="utf-8"))
    sources = {
        name: _inherited(origins.get(name, DEFAULT), place)
        if source == f"file {parent.config}"
        else source
        for name, source in resolved.sources.items()
    }
    if "out" not in overrides:
        sources["out"] = DEFAULT
    return replace(resolved, sources=sources)


def _inherited(origin: str, place: str) -> str:
    """Where a value comes from that the run before had."""
    return f"run {place}" if is_chosen(origin) else origin


def _check_kept(
    names: Sequence[str], resolved: ResolvedConfig, before: RunConfig, run: str
) -> None:
    """Refuse to change what cannot be changed.

    Raises:
        ConfigError: naming the setting and where its value came from.
    """
    for name in names:
        was, now = _value(before, name), _value(resolved.config, name)
        if was != now:
            raise ConfigError(
                f"{name} is {now!r} ({resolved.sources[name]}) but {run} has "
                f"{was!r}; leave it out, or start a new run"
            )


def _value(config: RunConfig, name: str) -> object:
    return attrgetter(name)(config)
