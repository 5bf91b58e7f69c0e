"""The run folder: everything of one run in one portable place.

config.toml         the resolved settings, each with its source
metrics.jsonl       one object per optimiser step
evaluations.jsonl   one object per evaluation
episodes.jsonl      some plays of each step, as text
adapters/vN/        adapters in mlx-lm's format
checkpoints/        what a resumed run needs
batches/            the samples of every step, where they are kept
"""

import gzip
import json
import os
import re
import shutil
import tomllib
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from legos.data.episode import Episode
from legos.errors import CheckpointError
from legos.loop.atomic import clear_unfinished, write_file, write_folder
from legos.loop.checkpoint import checkpoint_at, checkpoints, newest_whole, numbered, read_state
from legos.track.jsonl import append_whole, kept_bytes, read_metrics
from legos.weights.adapter import Adapter
from legos.weights.folder import is_adapter_folder, write_adapter

__all__ = ["RUNS", "RunFolder", "find_adapter", "find_run", "fresh_folder", "split_place"]

RUNS = Path("runs")  # where runs stand unless they are told otherwise
BEST = "best"
CONFIG = "config.toml"
_ADAPTER = re.compile(r"v(\d+)")
_BATCHES = re.compile(r"step-(\d+)\.json\.gz")


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.metrics = path / "metrics.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.adapters = path / "adapters"
        self.checkpoints = path / "checkpoints"
        self.batches = path / "batches"

    def check_free(self) -> None:
        """Refuse a place where a new run would mix with another.

        Raises:
            CheckpointError: a run, or a part of one, is there already.
        """
        if any(part.exists() for part in self._parts):
            raise CheckpointError(
                f"{self.path} already holds a run; go on with --resume {self.path}, "
                "or choose another --out"
            )

    @contextmanager
    def new_run(self, config: str) -> Generator[None]:
        """Make the folder of a new run; all is as before where the block comes to nothing.

        Args:
            config: the resolved settings, as TOML.

        Raises:
            CheckpointError: a run is there already, or the disk refuses.
        """
        self.check_free()
        try:
            write_file(self.config, config)
            yield
        except BaseException:
            if not checkpoints(self.checkpoints) and not _has_content(self.metrics):
                self._forget()
            raise

    def write_config(self, config: str) -> None:
        """Replace the settings by those that the run goes on with.

        Raises:
            CheckpointError: the disk refuses; the old ones stay.
        """
        write_file(self.config, config)

    def rewind(self, *, step: int, version: int) -> None:
        """Forget plays, adapters and batches of later steps than a resumed run goes on from.

        Args:
            step: optimiser steps done.
            version: policy version after them.
        """
        if self.episodes.exists():
            os.truncate(self.episodes, kept_bytes(self.episodes, step))
        clear_unfinished(self.adapters)
        for number, path in self._adapters().items():
            if number > version:
                shutil.rmtree(path)
        for number, path in self._batch_files().items():
            if number > step:
                path.unlink()

    def write_adapter(self, adapter: Adapter) -> Path:
        """Write ``adapters/vN``, whole or not at all; one that is there already stays.

        Raises:
            CheckpointError: the disk refuses.
        """
        place = self.adapters / f"v{adapter.version}"
        if not place.exists():
            model = tomllib.loads(self.config.read_text(encoding="utf-8")).get("model")
            known = replace(adapter, base_model=model)
            write_folder(place, lambda folder: write_adapter(known, folder))
        return place

    def adapter_folder(self, at: str | None = None) -> Path:
        """The folder of an adapter.

        Args:
            at: a step, "best" as for ``checkpoint``, or the folder's own name, such as ``v100``;
                None: the newest. The names count the steps that were applied, so that they differ
                from the steps of a run that has skipped some.

        Raises:
            CheckpointError: there is no such adapter, or none at all.
        """
        if not self.config.exists():
            raise CheckpointError(
                f"{self.path} holds no run: it has no {CONFIG}; give the folder of a run, "
                "such as runs/nim-1"
            )
        found = self._adapters()
        if not found:
            raise CheckpointError(f"{self.path} holds no adapter yet; train it first")
        if at is None:
            return found[max(found)]
        known = {path.name: path for _, path in sorted(found.items())}
        if at in known:
            return known[at]
        if at != BEST and not at.isdecimal():
            raise CheckpointError(f"{self.path} has no adapter {at!r}; it has {', '.join(known)}")
        versions = self._versions()
        step = self._best_step() if at == BEST else int(at)
        if step not in versions or versions[step] not in found:
            kept = ", ".join(str(s) for s, version in versions.items() if version in found)
            raise CheckpointError(
                f"{self.path} keeps no adapter of step {step}; it has those of steps "
                f"{kept or '(none)'} as {', '.join(known)} (see loop.checkpoint_every)"
            )
        return found[versions[step]]

    def checkpoint(self, at: str | None = None) -> Path:
        """A whole checkpoint of the run.

        Args:
            at: a step, or "best": of the best evaluation, where the run keeps that; None: the
                newest.

        Raises:
            CheckpointError: there is none, it is damaged, or ``at`` is neither.
        """
        if at is None:
            return newest_whole(self.checkpoints)
        if at == BEST:
            return checkpoint_at(self.checkpoints, self._best_step())
        if not at.isdecimal():
            raise CheckpointError(f"{at!r} is no step of {self.path}; give a number, or {BEST}")
        return checkpoint_at(self.checkpoints, int(at))

    def write_batches(self, step: int, record: Mapping[str, Any]) -> None:
        """Keep what a step was made of, as JSON values.

        Raises:
            CheckpointError: the disk refuses.
        """
        data = gzip.compress(json.dumps(record).encode(), compresslevel=1, mtime=0)
        write_file(self.batches / f"step-{step:06d}.json.gz", data)

    def read_batches(self, step: int) -> dict[str, Any]:
        """What ``write_batches`` kept.

        Raises:
            CheckpointError: it is not there, or damaged.
        """
        path = self._batch_files().get(step)
        if path is None:
            kept = self.batch_steps
            raise CheckpointError(
                f"{self.path} keeps no samples of step {step}; "
                + (
                    f"it has those of {len(kept)} steps, {kept[0]} to {kept[-1]}"
                    if kept
                    else "train with --loop.keep-batches to have them"
                )
            )
        try:
            return json.loads(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; take another step") from error

    @property
    def batch_steps(self) -> list[int]:
        """The steps whose samples are kept."""
        return sorted(self._batch_files())

    @property
    def adapter_versions(self) -> list[int]:
        """The versions of the adapters that are kept."""
        return sorted(self._adapters())

    def add_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Append plays as text, one JSON object a line.

        Raises:
            CheckpointError: the disk refuses.
        """
        lines = [json.dumps({"step": step, **_as_json(episode)}) + "\n" for episode in episodes]
        append_whole(self.episodes, "".join(lines).encode())

    @property
    def _parts(self) -> tuple[Path, ...]:
        files = (self.config, self.metrics, self.evaluations, self.episodes)
        return (*files, self.adapters, self.checkpoints, self.batches, self.path / "wandb")

    def _batch_files(self) -> dict[int, Path]:
        """Files of kept samples by step."""
        return numbered(self.batches, _BATCHES)

    def _best_step(self) -> int:
        """The step of the best evaluation, where the run keeps that."""
        best = read_state(newest_whole(self.checkpoints))["best"]
        if best is None:
            raise CheckpointError(
                f"{self.path} keeps no best checkpoint; give a step, or train with "
                "--loop.keep-best and a figure of the evaluation"
            )
        return best[1]

    def _versions(self) -> dict[int, int]:
        """Step -> policy version after it."""
        files = (file for file in (self.evaluations, self.metrics) if file.exists())
        lines = (line for file in files for line in read_metrics(file))
        known = {int(line["step"] or 0): int(line["policy_version"] or 0) for line in lines}
        return dict(sorted(known.items()))

    def _adapters(self) -> dict[int, Path]:
        """Adapter folders by version."""
        return numbered(self.adapters, _ADAPTER)

    def _forget(self) -> None:
        """Remove all parts, and the folder if nothing else is in it."""
        for part in self._parts:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                with suppress(OSError):
                    part.unlink()
        with suppress(OSError):  # it holds what is not ours, or was never made
            self.path.rmdir()


def find_run(text: str | Path, parent: Path = RUNS, *, purpose: str = "") -> RunFolder:
    """A run by its folder, or by its name among the runs in ``parent``.

    Args:
        text: folder or name.
        parent: folder of runs.
        purpose: what it is wanted for, in the words of the error.

    Raises:
        CheckpointError: neither holds a run.
    """
    for path in (Path(text), parent / text):
        if (path / CONFIG).is_file():
            return RunFolder(path)
    raise CheckpointError(
        f"{text} holds no run{purpose}: it has no {CONFIG}; `legos runs` lists those in {parent}"
    )


def find_adapter(text: str, parent: Path = RUNS) -> Path:
    """An adapter's folder by its path, or by the run that it belongs to.

    Args:
        text: an adapter folder; or a run, its folder or its name in ``parent``, for its newest
            adapter; or ``RUN@STEP``, ``RUN@best`` or ``RUN@vN``.
        parent: folder of runs.

    Raises:
        CheckpointError: there is no such run, or it has no such adapter.
    """
    if is_adapter_folder(Path(text)):
        return Path(text)
    run, at = split_place(text)
    return find_run(run, parent, purpose=" and no adapter").adapter_folder(at)


def split_place(text: str) -> tuple[str, str | None]:
    """``RUN@STEP`` as run and step; None where no step is given."""
    run, at, step = text.rpartition("@")
    return (run, step) if at and "/" not in step else (text, None)


def fresh_folder(parent: Path, name: str) -> Path:
    """Make ``parent/name-1``, ``-2``, ...: the first that is not taken.

    Raises:
        CheckpointError: the disk refuses.
    """
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


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _as_json(episode: Episode) -> dict[str, Any]:
    """A play for people and for the viewer: what was asked, said, and earned."""
    return {
        "arena": episode.arena,
        "task": episode.task.id,
        "seed": episode.task.seed,
        "rewards": dict(episode.rewards),
        "error": episode.error,
        "void": episode.void,
        "notes": list(episode.notes),
        "metrics": dict(episode.metrics),
        "seats": [
            {
                "role": rollout.role,
                "seat": rollout.seat,
                "turns": [
                    {
                        "asked": turn.messages[-1].content,
                        "said": turn.completion.text,
                        "move": turn.move,
                        "token_ids": list(turn.completion.token_ids),
                        "logprobs": [round(lp, 5) for lp in turn.completion.logprobs],
                        "versions": list(turn.completion.versions),
                    }
                    for turn in rollout.turns
                ],
            }
            for rollout in episode.rollouts
        ],
        "children": [_as_json(child) for child in episode.children],
    }
