"""One run as the page shows it: what was read of its files so far, and what is new."""

from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from time import monotonic

from legos.config.league import LeagueConfig
from legos.config.resolve import resolve, settings_of
from legos.config.schema import RunConfig
from legos.errors import CheckpointError, LegosError
from legos.page.health import AlarmHistory
from legos.run.ending import Standing, standing
from legos.run.episodes import StoredEpisode
from legos.run.folder import RunFolder
from legos.run.index.plays import PlayIndex
from legos.run.metrics import MetricTable, MetricTail
from legos.server.problems import Problem

_INDEXING_S = 0.25  # seconds that one request indexes for


class RunView:
    """Reads a run folder, and nothing twice; the requests of the page share it between threads.

    Attributes:
        name: name of the run on the page.
        folder: its files.
        lock: held while files are read or a result is put together.
        metrics: of each step.
        evaluations: of each evaluation.
        alarms: what the steps have reported.
        config: its settings; None: they cannot be read.
        settings: dotted name -> value; {} where they cannot be read.
        sources: dotted name -> where the value came from.
        config_text: the file of the settings; empty where they cannot be read.
    """

    def __init__(self, name: str, path: Path) -> None:
        """Begin without having read anything."""
        self.name = name
        self.folder = RunFolder(path)
        self.lock = RLock()
        self.config: RunConfig | None = None
        self.settings: dict[str, object] = {}
        self.sources: Mapping[str, str] = {}
        self.config_text = ""
        self._config_of: tuple[int, int] | None = None  # time and size of the file that was read
        self._config_problem: str | None = None
        self.plays = PlayIndex(self.folder)
        self.alarms = AlarmHistory()
        self.metrics = self.evaluations = MetricTable({})
        self._steps = MetricTail(self.folder.metrics, steps_alone=True)
        self._evaluated = MetricTail(self.folder.evaluations)
        self._unreadable: list[str] = []

    def read(self) -> "RunView":
        """Read what is new in the settings and the metrics; returns itself.

        Of a folder that is not there any more, what was read stays.
        """
        with self.lock:
            if self.exists:
                self._unreadable = []
                self._read_config()
                for read in (self._read_metrics, self._read_evaluations):
                    try:
                        read()
                    except CheckpointError as error:
                        self._unreadable.append(str(error))
        return self

    def _read_metrics(self) -> None:
        known, self.metrics = self.metrics.num_steps, self._steps.read()
        if self._steps.rewritten:  # a resumed run repeats steps
            known, self.alarms = 0, AlarmHistory()
        league = self.config.league if self.config else LeagueConfig()
        for row in self.metrics.rows(known):
            self.alarms.add(row, league.collapse_elo)

    def _read_evaluations(self) -> None:
        self.evaluations = self._evaluated.read()

    def refresh_plays(self) -> tuple[int, list[str]]:
        """Index new plays, a little with each request.

        Returns:
            Number of plays that are still to be indexed, and why some cannot be, in sentences.
        """
        if not self.exists:
            return 0, []
        started = monotonic()
        try:
            newest = self.plays.refresh(_INDEXING_S)
            if monotonic() - started < _INDEXING_S:
                return 0, []
            return self.folder.plays.last() - newest, []
        except CheckpointError as error:
            return 0, [str(error)]

    def play(self, number: int) -> StoredEpisode:
        """A stored play.

        Raises:
            Problem: 404, there is no such play, or it cannot be read.
        """
        try:
            return self.folder.episode(number)
        except CheckpointError as error:
            raise Problem(404, str(error)) from error

    def close(self) -> None:
        """Close its index."""
        self.plays.close()

    @property
    def exists(self) -> bool:
        """Whether the folder is still there."""
        return self.folder.path.is_dir()

    @property
    def step(self) -> int:
        """Newest step that has metrics."""
        return int(self.metrics.newest.get("step") or self.evaluations.newest.get("step") or 0)

    @property
    def state(self) -> Standing:
        """How the run stands."""
        steps = self.config.loop.steps if self.config else None
        done = steps is not None and self.step >= steps
        return standing(self.folder, done=done and self.evaluations.newest.get("step") == self.step)

    @property
    def problems(self) -> list[str]:
        """What of the folder cannot be shown, in sentences."""
        if not self.exists:
            return [f"{self.folder.path} is not there any more: it was moved or removed"]
        tails = self._steps.problem, self._evaluated.problem
        found = (self._config_problem, *self._unreadable, *tails)
        return [text for text in found if text]

    def _read_config(self) -> None:
        try:
            status = self.folder.config.stat()
        except OSError as error:
            self._config_of = None
            self._lose_config(f"config.toml cannot be read: {error.strerror}")
            return
        stamp = status.st_mtime_ns, status.st_size
        if stamp == self._config_of:
            return
        self._config_of, self._config_problem = stamp, None
        try:
            resolved = resolve(run=self.folder.settings)
            self.config, self.sources = resolved.config, resolved.sources
            self.settings = settings_of(self.config)
            self.config_text = self.folder.config.read_text(encoding="utf-8")
        except (LegosError, OSError, UnicodeError, ValueError) as error:
            self._lose_config(f"settings: {error}")

    def _lose_config(self, problem: str) -> None:
        self.config, self.settings, self.sources, self.config_text = None, {}, {}, ""
        self._config_problem = problem
