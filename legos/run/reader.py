"""Read a run from notebooks and views: each file of its folder as records, also while it runs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

from legos.config.resolve import is_chosen, resolve, settings_of
from legos.errors import CheckpointError, ConfigError
from legos.run.checkpoint import checkpoint_steps
from legos.run.ending import Standing, standing
from legos.run.episodes import StoredEpisode, numbered_episode
from legos.run.find import find_run
from legos.run.folder import RUNS, RunFolder
from legos.run.index.plays import FoundPlays, PlayIndex
from legos.run.metrics import MetricTable, MetricTail
from legos.stalls import Stall, read_stalls


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run."""

    values: Mapping[str, object]  # dotted name -> value
    sources: Mapping[str, str]  # dotted name -> "default", "command line", "arena nim", ...

    @property
    def chosen(self) -> dict[str, object]:
        """The settings that the user chose: neither defaults nor recommendations."""
        return {n: self.values[n] for n, source in self.sources.items() if is_chosen(source)}

    def differences(self, other: "RunSettings") -> dict[str, tuple[object, object]]:
        """Dotted name -> value here and value there, where they differ; None: it is not set."""
        names = dict.fromkeys((*self.values, *other.values))
        pairs = {name: (self.values.get(name), other.values.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class StoredCheckpoint(NamedTuple):
    """A checkpoint of a run."""

    step: int
    path: Path
    written_at: float  # Unix time, seconds


class FoundEpisodes(Sequence[StoredEpisode]):
    """Plays of a run, which are read when they are asked for.

    Attributes:
        numbers: their numbers in the run.
    """

    def __init__(self, folder: RunFolder, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self._folder = folder

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> StoredEpisode: ...
    @overload
    def __getitem__(self, at: slice) -> "FoundEpisodes": ...
    def __getitem__(self, at: int | slice) -> "StoredEpisode | FoundEpisodes":
        """One play; raises ``CheckpointError`` if its file was removed since the search."""
        if isinstance(at, slice):
            return FoundEpisodes(self._folder, self.numbers[at])
        return self._folder.episode(self.numbers[at])

    def __iter__(self) -> Iterator[StoredEpisode]:
        """The plays, without those whose file was removed since the search."""
        for number, line in self._folder.plays.lines(self.numbers):
            yield numbered_episode(self._folder.episodes, number, line)


class RunReader:
    """A run as its folder shows it now: each call reads what the run has added, and nothing else.

    It never writes into the folder; the index of the plays is a file beside it.

    Attributes:
        folder: the places of the run's files.
        name: name of the folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.name = folder.path.resolve().name
        self._metrics = MetricTail(folder.metrics)
        self._evaluations = MetricTail(folder.evaluations)
        self._index = PlayIndex(folder)

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.state}, {self.metrics.newest.get('step', 0)} steps>"

    @property
    def state(self) -> Standing:
        """Whether it is running, and otherwise how its last process ended.

        Where the settings cannot be read, a run that has done all its steps is "stopped".
        """
        steps: object = ""
        with suppress(CheckpointError, ConfigError):
            steps = self.config.values["loop.steps"]
        return standing(self.folder, done=self.evaluations.newest.get("step") == steps)

    @property
    def config(self) -> RunSettings:
        """Its settings.

        Raises:
            CheckpointError: ``config.toml`` was cut, edited or lost.
            ConfigError: it is of another version.
        """
        found = resolve(run=self.folder.settings)
        return RunSettings(values=settings_of(found.config), sources=found.sources)

    @property
    def metrics(self) -> MetricTable:
        """The metrics of its steps, those of evaluations included."""
        return self._metrics.read()

    @property
    def evaluations(self) -> MetricTable:
        """The metrics of its evaluations, from step 0."""
        return self._evaluations.read()

    @property
    def checkpoints(self) -> list[StoredCheckpoint]:
        """Its checkpoints, oldest first."""
        found: list[StoredCheckpoint] = []
        for step, path in checkpoint_steps(self.folder.checkpoints).items():
            with suppress(FileNotFoundError):  # the run has removed it meanwhile
                found.append(StoredCheckpoint(step, path, path.stat().st_mtime))
        return found

    @property
    def adapters(self) -> dict[int, Path]:
        """The adapters of its first policy: version -> folder, in ascending order."""
        return self.folder.adapter_versions

    @property
    def stalls(self) -> list[Stall]:
        """The reports of a stalled event loop."""
        return read_stalls(self.folder.stalls)

    @property
    def failure(self) -> str | None:
        """The error that ended it; None: none did."""
        return self.folder.failed_with()

    @property
    def problems(self) -> list[str]:
        """What could not be read so far, one line for each file."""
        found = [tail.problem for tail in (self._metrics, self._evaluations) if tail.problem]
        if damaged := self._index.damaged:
            found.append(f"episodes.jsonl: {len(damaged)} damaged lines are left out")
        return found

    def episodes(self, **wanted: Any) -> FoundEpisodes:
        """Its plays, oldest first, as ``PlayIndex.search`` finds them.

        Args:
            wanted: ``role``, ``reward``, ``seat``, ``arena``, ``task``, ``seed``, ``step``,
                ``evaluation``, ``failure``, ``tokens``, ``text`` and ``order``.

        Raises:
            CheckpointError: a file of plays cannot be read.
        """
        found = self.search(**{"order": "oldest", **wanted}, page=slice(0))
        return FoundEpisodes(self.folder, found.numbers)

    def episode(self, number: int) -> StoredEpisode:
        """One play by its number; -1 is the newest; raises ``CheckpointError`` if there is none."""
        return self.folder.episode(number)

    def search(self, **wanted: Any) -> FoundPlays:
        """What the index knows of a page of plays; arguments as for ``PlayIndex.search``."""
        self._index.refresh()
        return self._index.search(**wanted)

    def close(self) -> None:
        """Close the index; the next search opens it again."""
        self._index.close()


def open_run(run: str | Path, parent: Path = RUNS) -> RunReader:
    """Read a run, also while it goes on: its metrics as columns, its plays, settings and states.

    ::

        run = open_run("nim-1")
        run.metrics["reward_mean"]                     # NumPy
        run.episodes(role="first", reward=(1.0, None)) # plays, read when they are asked for

    Args:
        run: its folder, or its name in ``parent``.
        parent: folder of runs.

    Raises:
        CheckpointError: there is no such run.
    """
    return RunReader(find_run(run, parent))
