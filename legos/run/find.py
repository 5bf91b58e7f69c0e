"""Find runs and adapters by the names that a user gives, and a name for a new run."""

import math
import re
import shlex
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from legos.config.resolve import read_config
from legos.errors import CheckpointError, LegosError
from legos.run.checkpoint import STATE, checkpoint_at, checkpoints, newest_whole, read_state
from legos.run.folder import CONFIG, METRICS, RUNS, RunFolder
from legos.run.metrics import MetricTail
from legos.weights.folder import is_adapter_folder

BEST = "best"


def find_run(text: str | Path, parent: Path = RUNS, *, purpose: str = "") -> RunFolder:
    """A run by its folder, or by its name among the runs in ``parent``.

    Args:
        text: folder or name.
        parent: folder of runs.
        purpose: inserted into the error message, to say what the run is needed for.

    Raises:
        CheckpointError: neither place holds a run, or can be looked at.
    """
    for path in (Path(text), parent / text):
        run = RunFolder(path)
        with _looking_at(path):
            if run.config.is_file() or checkpoints(run.checkpoints):
                return run
    raise CheckpointError(
        f"{text} holds no run{purpose}: it has no {CONFIG}; `legos runs` lists those in {parent}"
    )


def runs_in(parent: Path) -> list[Path]:
    """The runs of a folder, by name, also without settings; none if it cannot be looked into."""
    try:
        found = [*parent.glob(f"*/{CONFIG}"), *parent.glob(f"*/{METRICS}")]
    except OSError:
        return []
    return sorted({path.parent for path in found})


def find_adapter(text: str, parent: Path = RUNS) -> Path:
    """An adapter's folder by its path, or by the run that it belongs to.

    Args:
        text: an adapter folder; a run (its folder, or its name in ``parent``), for its newest
            adapter; or ``RUN@STEP``, ``RUN@best`` or ``RUN@vN``.
        parent: folder of runs.

    Raises:
        CheckpointError: there is no such run, or it has no such adapter.
    """
    with _looking_at(Path(text)):
        if is_adapter_folder(Path(text)):
            return Path(text)
    run, at = split_place(text)
    return adapter_of(find_run(run, parent, purpose=" and no adapter"), at)


def adapter_of(run: RunFolder, at: str | None = None) -> Path:
    """The folder of an adapter of a run.

    Args:
        run: the run.
        at: a step, "best" as for ``checkpoint_of``, or the folder's name, such as ``v100``; None:
            the newest. The names count applied steps only, so they differ from the step numbers in
            a run that skipped steps.

    Raises:
        CheckpointError: there is no such adapter, or none at all.
    """
    found = run.adapter_versions
    if not found:
        command = shlex.join(["uv", "run", "legos", "train", "--resume", str(run.path)])
        raise CheckpointError(f"{run.path} holds no adapter yet; train it first with\n  {command}")
    if at is None:
        return found[max(found)]
    known = {path.name: path for path in found.values()}
    if at in known:
        return known[at]
    if at != BEST and not at.isdecimal():
        raise CheckpointError(f"{run.path} has no adapter {at!r}; it has {', '.join(known)}")
    step, versions = _step(run, at), _versions(run)
    if versions.get(step) not in found:
        kept = ", ".join(str(s) for s, version in versions.items() if version in found)
        raise CheckpointError(
            f"{run.path} keeps no adapter of step {step}; it has those of steps "
            f"{kept or '(none)'} as {', '.join(known)} (see loop.checkpoint_every)"
        )
    return found[versions[step]]


def checkpoint_of(run: RunFolder, at: str | None = None) -> Path:
    """An intact checkpoint of a run.

    Args:
        run: the run.
        at: a step, or "best" for the best evaluation, if the run keeps it; None: the newest.

    Raises:
        CheckpointError: there is none, it is damaged, or ``at`` is not valid.
    """
    if at is None:
        return newest_whole(run.checkpoints)
    if at != BEST and not at.isdecimal():
        raise CheckpointError(f"{at!r} is no step of {run.path}; give a number, or {BEST}")
    return checkpoint_at(run.checkpoints, _step(run, at))


def named_step(run: RunFolder, at: str | None) -> int | None:
    """The step that ``RUN@STEP`` or ``RUN@best`` names; None: it names no step.

    Raises:
        CheckpointError: the run keeps no best checkpoint.
    """
    return _step(run, at) if at is not None and (at == BEST or at.isdecimal()) else None


def best_step(run: RunFolder) -> int | None:
    """Step of the best evaluation; None: the run does not keep it.

    Raises:
        CheckpointError: the run has no intact checkpoint.
    """
    best = read_state(newest_whole(run.checkpoints, only=STATE))["best"]
    return best[1] if best else None


def _step(run: RunFolder, at: str) -> int:
    """A step by its number, or that of the best evaluation, if the run keeps it."""
    if at != BEST:
        return int(at)
    best = best_step(run)
    if best is None:
        raise CheckpointError(
            f"{run.path} keeps no best checkpoint; give a step, or train with --loop.keep-best and "
            "a metric of the evaluation"
        )
    return best


def _versions(run: RunFolder) -> dict[int, int]:
    """Step -> the policy version after it."""
    known = {
        step: int(version)
        for each, last in with_parents(run)
        for path in (each.evaluations, each.metrics)
        for step, version in MetricTail(path).read().points("policy_version")
        if step <= last
    }
    return dict(sorted(known.items()))


def with_parents(run: RunFolder) -> list[tuple[RunFolder, float]]:
    """A run after those that it was forked from and that are found, each with its last step.

    A fork has adapters of steps that only the metrics of its parent know.
    """
    found: list[tuple[RunFolder, float]] = [(run, math.inf)]
    with suppress(LegosError):
        while start := read_config(found[0][0].config).fork_from:
            name, step = split_place(start)
            parent = find_run(name)
            if parent.path in {each.path for each, _ in found}:
                break
            found.insert(0, (parent, int(step or 0)))
    return found


@contextmanager
def _looking_at(path: Path) -> Generator[None]:
    """Within the block, refuse a path at which the system can look for nothing.

    Raises:
        CheckpointError: its name is too long, or this user may not look there.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot look for a run at {path}: {error.strerror}") from error


def split_place(text: str) -> tuple[str, str | None]:
    """Split ``RUN@STEP`` into run and step; the step is None if not given."""
    run, at, step = text.rpartition("@")
    return (run, step) if at and "/" not in step else (text, None)


def fresh_folder(parent: Path, name: str) -> Path:
    """Make ``parent/name-1``, ``-2``, ...: the first that does not exist.

    What is neither letter, digit, ``_``, ``.`` nor ``-`` in the name becomes ``-``.

    Raises:
        CheckpointError: the folder cannot be made.
    """
    name = re.sub(r"[^\w.]+", "-", name).strip("-")
    number = 1
    while True:
        place = parent / f"{name}-{number}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise CheckpointError(
                f"cannot make the run folder {place}: {error}; choose another place with --out"
            ) from error
        else:
            return place
