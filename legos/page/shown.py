"""Which runs the page shows, and under which names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

from legos.page.run_view import RunView
from legos.run.find import find_run, runs_in
from legos.run.folder import RUNS
from legos.server.problems import Problem


class ShownRuns:
    """The runs that were named, or all runs of a folder, new ones included."""

    def __init__(self, named: Sequence[str] = (), *, parent: Path = RUNS) -> None:
        """Look for the runs.

        Args:
            named: run folders, names of runs in ``parent``, or folders of runs; none: ``parent``.
            parent: the folder of runs.

        Raises:
            CheckpointError: one of them holds no run.
        """
        self._parents = [] if named else [parent]
        self._paths: list[Path] = []
        for text in named:
            if runs_in(Path(text)):
                self._parents.append(Path(text))
            else:
                self._paths.append(find_run(text, parent).path)
        self._views: dict[Path, RunView] = {}
        self._lock = Lock()

    @property
    def places(self) -> list[str]:
        """The folders that are looked into."""
        return [str(path) for path in (*self._parents, *self._paths)]

    def all(self) -> dict[str, RunView]:
        """Name -> run; a run that was named stays when its folder is moved."""
        found = [path for parent in self._parents for path in runs_in(parent)]
        paths = list({path.resolve(): path for path in (*self._paths, *found)}.values())
        with self._lock:
            before = self._views
            self._views = {
                path: self._view(path, name)
                for path, name in zip(paths, _names(paths), strict=True)
            }
            for path, view in before.items():
                if self._views.get(path) is not view:
                    view.close()
            return {view.name: view for view in self._views.values()}

    def get(self, name: str) -> RunView:
        """One run by its name.

        Raises:
            Problem: 404, there is no such run (any more).
        """
        run = self.all().get(name)
        if run is None:
            raise Problem(
                404,
                f"there is no run {name!r} in {', '.join(self.places)}; it may have been moved, "
                "renamed or removed",
            )
        return run

    def close(self) -> None:
        """Close what is open of the runs."""
        with self._lock:
            for view in self._views.values():
                view.close()

    def _view(self, path: Path, name: str) -> RunView:
        known = self._views.get(path)
        return known if known is not None and known.name == name else RunView(name, path)


def _names(paths: Iterable[Path]) -> list[str]:
    """A name for each folder: its last part, after as many parts before it as make it unique."""
    parts = [path.resolve().parts for path in paths]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(each[-length:]) for each, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        same = [counts[name] > 1 for name in names]
        if not any(same):
            return names
        lengths = [length + twice for length, twice in zip(lengths, same, strict=True)]
