"""The run folder: all files of one run in one portable folder.

config.toml         the resolved settings, each with its source
metrics.jsonl       one object per optimiser step, and per evaluation that was ready later
evaluations.jsonl   one object per evaluation
episodes.jsonl      the newest plays that are kept, as text
episodes/           older ones, compressed
failure.txt         the error that ended the run, if one did
adapters/vN/        adapters in mlx-lm's format; those of further policies in adapters/NAME/vN
checkpoints/        the state that a resumed run needs
snapshot            asks the run for a snapshot of its league after the next step
stalls.txt          stacks of all threads and tasks, where the event loop has stalled
"""

import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from legos.errors import ArenaError, CheckpointError, ConfigError, RecordError, RequestError
from legos.files.atomic import (
    check_writable,
    clear_unfinished,
    refusals_named,
    write_file,
    write_folder,
)
from legos.files.lines import has_step_lines, rewind_lines
from legos.loop.trained import TrainedTurns
from legos.records.episode import Episode
from legos.run.checkpoint import checkpoints, newest_whole, numbered
from legos.run.episodes import StoredEpisode, episode_line, numbered_episode, stored_episode
from legos.run.lock import check_unheld, check_unmoved, hold
from legos.run.play_files import FILE_BYTES, PlayFiles
from legos.run.settings import CONFIG, checked_settings, sealed
from legos.weights.adapter import Adapter
from legos.weights.folder import write_adapter

RUNS = Path("runs")  # default folder of runs
METRICS = "metrics.jsonl"
FAILS_AGAIN = (ArenaError, ConfigError, RecordError, RequestError)  # would fail again unchanged
_ADAPTER = re.compile(r"v(\d+)")


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.metrics = path / METRICS
        self.evaluations = path / "evaluations.jsonl"
        self.episodes = path / "episodes.jsonl"
        self.plays = PlayFiles(self.episodes)
        self.stalls = path / "stalls.txt"
        self.failure = path / "failure.txt"
        self.request = path / "snapshot"
        self.adapters = path / "adapters"
        self.checkpoints = path / "checkpoints"

    @property
    def settings(self) -> Path:
        """``config.toml``, after a check that it records how the run was trained.

        Raises:
            CheckpointError: it was cut, edited or lost; the message says how to bring it back.
        """
        return checked_settings(self.path, checkpoints(self.checkpoints))

    @property
    def has_steps(self) -> bool:
        """Whether the run has done a step; line 0 has the metrics of the first evaluation."""
        return has_step_lines(self.metrics)

    def take_request(self) -> bool:
        """Whether somebody has asked for a snapshot since the last call."""
        with suppress(FileNotFoundError):
            self.request.unlink()
            return True
        return False

    def check_free(self) -> None:
        """Check that a new run can write here without mixing with another; writes nothing.

        The remains of a run that was killed before its first checkpoint are accepted.

        Raises:
            CheckpointError: a run or a part of one is already there, the path is not a folder, or
                this user may not write there.
        """
        with refusals_named(self.path):
            place = next(each for each in (self.path, *self.path.parents) if each.exists())
            if not place.is_dir():
                raise CheckpointError(
                    f"--out is {self.path} but {place} is a file; give the folder of a run, "
                    f"such as {RUNS / 'mine'}"
                )
            check_writable(place)
            self._refuse_parts(left_behind=check_unheld(self.path))

    @contextmanager
    def new_run(self, config: str) -> Generator[None]:
        """Make and lock the folder of a new run; a run that fails early leaves no files.

        Early means before the first checkpoint, or before the first step with an error that would
        occur again (``FAILS_AGAIN``).

        Args:
            config: the resolved settings, as TOML.

        Raises:
            CheckpointError: a run is already there, or the files cannot be written.
        """
        self.check_free()
        try:
            with hold(self.path) as left_behind:
                if left_behind:
                    self.tidy()
                self._refuse_parts(left_behind=left_behind)
                try:
                    self._forget()
                    self.write_config(config)
                    yield
                except BaseException as error:
                    again = isinstance(error, FAILS_AGAIN) and not self.has_steps
                    if again or self._came_to_nothing:
                        self._forget()
                    raise
        finally:
            with suppress(OSError):  # the folder is not empty, or does not exist
                self.path.rmdir()

    @contextmanager
    def resumed_run(self) -> Generator[Path | None]:
        """Lock the folder of a resumed run, and remove what a killed process left unfinished.

        Yields:
            Its newest intact checkpoint; None if it was killed before its first checkpoint, so that
            it starts from the beginning.

        Raises:
            CheckpointError: another process trains in it, no checkpoint is intact, or the files
                cannot be written.
        """
        with hold(self.path):
            self.tidy()
            if self._came_to_nothing:
                self._forget(but=self.config)
                yield None
            else:
                yield newest_whole(self.checkpoints)

    def write_config(self, config: str) -> None:
        """Write the settings, or replace them by those that the resumed run uses.

        Raises:
            CheckpointError: the file cannot be written; the old settings stay.
        """
        write_file(self.config, sealed(config))

    def tidy(self) -> None:
        """Remove files that a killed process left unfinished; only for the lock's holder.

        Raises:
            CheckpointError: the files cannot be removed.
        """
        with refusals_named(self.path):
            adapters = (self.adapters, *(path for path in self.adapters.glob("*") if path.is_dir()))
            for parent in (self.path, self.plays.folder, *adapters, self.checkpoints):
                clear_unfinished(parent)

    def rewind(self, *, step: int, versions: Mapping[str, int], evaluated: int | None) -> set[int]:
        """Remove everything of later steps than the one that a resumed run continues from.

        Args:
            step: number of optimiser steps done.
            versions: name of each policy -> its version after them; the first is that of
                ``adapters/vN``.
            evaluated: step of the newest evaluation; None: there is none.

        Returns:
            The steps that had a line of metrics, the removed ones included.

        Raises:
            CheckpointError: the files cannot be written.
        """
        newest = -1 if evaluated is None else evaluated
        rewind_lines(self.evaluations, newest)
        self.plays.rewind(step, evaluated=newest)
        with refusals_named(self.path):
            for place, version in zip(
                self.adapter_places(versions), versions.values(), strict=True
            ):
                for number, path in numbered(place.parent, _ADAPTER).items():
                    if number > version:
                        shutil.rmtree(path)
        return rewind_lines(self.metrics, step, evaluated=newest)

    def write_adapters(self, adapters: Sequence[Adapter]) -> None:
        """Write the adapter of each policy atomically; an existing one is not replaced.

        Args:
            adapters: the adapters; the first is that of ``adapters/vN``.

        Raises:
            CheckpointError: the files cannot be written, or the run folder was moved.
        """
        check_unmoved(self.path)
        places = self.adapter_places({each.name: each.version for each in adapters})
        for adapter, place in zip(adapters, places, strict=True):
            if not place.exists():
                write_folder(place, partial(write_adapter, adapter))

    def adapter_places(self, versions: Mapping[str, int]) -> list[Path]:
        """The folder of each policy's adapter of one version; name -> version, the first first."""
        return [
            self.adapters / (name if index else "") / f"v{version}"
            for index, (name, version) in enumerate(versions.items())
        ]

    def failed_with(self) -> str | None:
        """The error that ended the run; None: none did, or it cannot be read."""
        try:
            return self.failure.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    @property
    def adapter_versions(self) -> dict[int, Path]:
        """The adapters of the first policy that are kept: version -> folder, in ascending order."""
        return numbered(self.adapters, _ADAPTER)

    def episode(self, number: int) -> StoredEpisode:
        """One stored play by its number; -1 is the newest.

        Raises:
            CheckpointError: there is no such play, or the line is no play.
        """
        return numbered_episode(self.episodes, *self.plays.line(number))

    def add_episodes(
        self,
        step: int,
        episodes: Sequence[Episode],
        *,
        evaluation: bool = False,
        trained: TrainedTurns | None = None,
        full_at: int = FILE_BYTES,
    ) -> bool:
        """Append plays, one JSON object per line; returns whether the file was full.

        Args:
            step: as the others, see ``stored_episode``.
            episodes: the plays.
            evaluation: whether an evaluation played them.
            trained: what the step computed for their turns.
            full_at: size of a full file, bytes.

        Raises:
            CheckpointError: the file cannot be written.
        """
        check_unmoved(self.path)
        stored = (
            stored_episode(one, step=step, evaluation=evaluation, trained=trained)
            for one in episodes
        )
        return self.plays.append(b"".join(map(episode_line, stored)), full_at=full_at)

    @property
    def _parts(self) -> tuple[Path, ...]:
        files = (self.config, self.metrics, self.evaluations, self.episodes)
        folders = (self.plays.folder, self.adapters, self.checkpoints)
        services = self.path / "wandb", self.path / "trackio"
        return *files, self.stalls, self.failure, *folders, *services

    @property
    def _came_to_nothing(self) -> bool:
        """Whether the run has neither a checkpoint nor a step."""
        return not checkpoints(self.checkpoints) and not self.has_steps

    def _refuse_parts(self, *, left_behind: bool) -> None:
        """Raise an error if the folder holds parts of a run, unless it was killed early.

        Args:
            left_behind: whether a killed process left its lock file.

        Raises:
            CheckpointError: the message says what to do.
        """
        if any(part.exists() for part in self._parts):
            if left_behind and self._came_to_nothing:
                return
            raise CheckpointError(
                f"{self.path} already holds a run; go on with --resume {self.path}, "
                "or choose another --out"
            )

    def _forget(self, *, but: Path | None = None) -> None:
        """Remove all parts of the run except ``but``."""
        for part in self._parts:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            elif part != but:
                with suppress(OSError):
                    part.unlink()
