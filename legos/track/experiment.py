"""Log a run to a service of experiments, Weights & Biases or trackio, as its users expect it.

Every row has the optimiser step of its values as ``step``, the horizontal axis of every curve.
Evaluations have rows of their own, because they end while later steps are trained. A resumed run
makes some steps again; those that an earlier process has logged are left out, so that the steps of
a curve ascend.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from legos.credit.means import trained_returns
from legos.files.atomic import write_file
from legos.files.lines import has_evaluation_alone
from legos.losses.alarms import Alarm
from legos.protocols import Ratios, Tracker
from legos.records.episode import Episode

Better = Callable[[Iterable[str]], Mapping[str, bool]]
_KNOWN = ("arena", "eval", "loop", "time")
_OF_LOOP = ("discarded/", "filtered/", "memory/", "play/", "publish/", "replays/", "trained/")
_OF_LOOP += ("tokens_", "staleness_")
_COLUMNS = ("step", "kind", "arena", "task", "seats", "reward", "rewards", "play", "failure")
_PLAYS = 16  # of a table
_CHARACTERS = 4000  # of a play in a table
_HISTOGRAMS_EVERY = 10  # steps
_BINS = 64
_VERSIONS = 200  # steps whose adapters are known, for evaluations that end later
_FIRST = ["v0", "*/v0"]  # patterns of the folders of version 0


class _Logged(TypedDict):
    """What all processes of a run have logged."""

    rows: int
    step: int  # newest optimiser step; -1: none
    evaluated: int  # newest evaluated step; -1: none
    best: float | None  # best value of the metric that decides which adapter is the best
    best_by: str  # that metric; with "-" where a lower one is better
    adapters: dict[str, list[str]]  # step -> adapter folders of the policies, of the newest steps


class ExperimentTracker(Tracker):
    """Logs to an open run of a service.

    Of a step it logs the metrics, and every ten steps histograms of rewards, answer lengths and
    importance ratios; of an evaluation its metrics, a table of plays, and the adapters of all
    policies if it is the best so far; at the end the newest adapters.
    """

    def __init__(
        self,
        library: Any,
        run: Any,
        folder: Path,
        *,
        better: Better,
        best_by: str | None = None,
        step_column: bool = True,
    ) -> None:
        """Go on where the processes before have ended.

        Args:
            library: ``wandb``, or a module with the same ``Table``, ``Histogram``, ``Artifact`` and
                ``AlertLevel``.
            run: its open run.
            folder: folder of the run.
            better: name of a metric of an evaluation -> whether larger is better, of those that say
                most; the first decides which adapter is the best.
            best_by: metric that decides instead, without ``eval/``; "-x": a lower x is better.
            step_column: whether ``step`` is a value of each row, because rows need numbers that
                ascend; otherwise rows have the number of the step.
        """
        self._library, self._run, self._folder = library, run, folder
        self._better, self._best_by, self._step_column = better, best_by, step_column
        self._file = folder / library.__name__ / "logged.json"
        self._logged = _Logged(
            rows=0, step=-1, evaluated=-1, best=None, best_by="", adapters={"0": _FIRST}
        )
        if self._file.is_file():
            self._logged |= json.loads(self._file.read_bytes())
        self._plays: tuple[str, Sequence[Episode], int] = ("", (), 0)  # kind, newest plays, step
        self._kept: dict[Path, Path] = {}  # folder of a policy's adapters -> the last one logged

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Log the metrics of one step or of one evaluation, without those that are None."""
        values = {grouped(n): v for n, v in metrics.items() if v is not None and n != "step"}
        kind: Literal["step", "evaluated"] = "step"
        if has_evaluation_alone(metrics):
            kind = "evaluated"
        elif metrics.get("policy_version") is not None:
            known = {n: v for n, v in self._logged["adapters"].items() if int(n) < step}
            known[f"{step}"] = [  # later ones are those of a run before a resume
                f"{name.removesuffix('policy_version')}v{version:.0f}"
                for name, version in metrics.items()
                if name.endswith("policy_version") and version is not None
            ]
            self._logged["adapters"] = dict([*known.items()][-_VERSIONS:])
        if step <= self._logged[kind]:
            return
        if kind == "evaluated":
            if self._plays[1]:
                values["eval/plays"] = self._table()
            self._keep_best(values, step)
        self._logged[kind] = step
        self._row(values, step)

    def plays(
        self, episodes: Sequence[Episode], *, step: int, evaluation: bool, ratios: Ratios = None
    ) -> None:
        """Take the plays of a step or of an evaluation, before its metrics; see ``Tracker``."""
        if evaluation or self._plays[0] != "evaluation":
            self._plays = ("evaluation" if evaluation else "training", episodes, step)
        if evaluation or step % _HISTOGRAMS_EVERY or step <= self._logged["step"]:
            return
        rollouts = [r for e in episodes for r in e.rollouts if r.policy is not None]
        ended = [e for e in episodes if not (e.error or e.void)]
        rewards = trained_returns(ended)
        lengths = [len(turn.completion.token_ids) for r in rollouts for turn in r.turns]
        found = {"rewards": rewards, "answer_tokens": lengths, "ratios": ratios() if ratios else ()}
        self._row(
            {
                f"train/histogram/{name}": self._library.Histogram(
                    np_histogram=np.histogram(np.asarray(values, np.float64), _BINS)
                )
                for name, values in found.items()
                if len(values)
            },
            step,
        )

    def alert(self, alarm: Alarm, *, step: int) -> None:
        """Send an alarm."""
        levels = self._library.AlertLevel
        level = levels.ERROR if alarm.level == "error" else levels.WARN
        self._run.alert(title=f"step {step}: {alarm.metric}", text=alarm.text, level=level)

    def close(self) -> None:
        """Log the newest adapters, write all pending data and end the run."""
        self._keep_adapters([*self._logged["adapters"].values()][-1], "latest")
        self._run.finish()

    def _row(self, values: Mapping[str, Any], step: int) -> None:
        """Log a row; its number ascends over all processes of the run."""
        if self._step_column:
            self._run.log({**values, "step": step}, step=self._logged["rows"], commit=True)
        else:
            self._run.log(values, step=step)
        self._logged["rows"] += 1
        write_file(self._file, json.dumps(self._logged))

    def _table(self) -> Any:
        """A table of some plays that lie evenly between the worst and the best."""
        kind, episodes, step = self._plays
        ordered = sorted(episodes, key=_reward)
        count = min(_PLAYS, len(ordered))
        places = np.linspace(0, len(ordered) - 1, count).round().astype(int)
        rows = [[step, kind, *_cells(ordered[int(place)])] for place in places]
        if kind == "evaluation":  # the next one has its own
            self._plays = ("", (), 0)
        return self._library.Table(columns=list(_COLUMNS), data=rows)

    def _keep_best(self, values: Mapping[str, Any], step: int) -> None:
        """Log the adapters of a step whose evaluation is the best so far."""
        if self._best_by is not None:
            name, larger = f"eval/{self._best_by.lstrip('-')}", not self._best_by.startswith("-")
        else:
            name, larger = next(iter(self._better(values).items()), ("", True))
        adapters = self._logged["adapters"].get(f"{step}")
        if name not in values or adapters is None:
            return
        value: float = values[name] if larger else -values[name]
        best, by = self._logged["best"], name if larger else f"-{name}"
        if best is None or by != self._logged["best_by"] or value > best:
            self._logged["best"], self._logged["best_by"] = value, by
            self._keep_adapters(adapters, "best", "latest")

    def _keep_adapters(self, patterns: Iterable[str], *aliases: str) -> None:
        """Log adapters of the run folder, unless they were logged just before."""
        run, root = self._folder.resolve().name, self._folder / "adapters"
        for place in sorted(found for pattern in patterns for found in root.glob(pattern)):
            if self._kept.get(place.parent) == place:
                continue
            self._kept[place.parent] = place
            policy = place.parent.relative_to(root).parts  # empty: the first
            artifact = self._library.Artifact("-".join([run, "adapter", *policy]), type="model")
            for file in place.iterdir():
                artifact.add_file(str(file))
            self._run.log_artifact(artifact, aliases=[*aliases, f"adapter-{place.name}"])


def grouped(name: str) -> str:
    """The name of a metric in one of five groups, each of which becomes a section of panels.

    These are ``train/``, ``eval/``, ``arena/``, ``loop/`` and ``time/``.
    """
    first, _, rest = name.partition("/")
    if name.endswith(("_s", "/seconds_per_step")) and first != "eval":
        return f"time/{rest or name}"
    if first in _KNOWN:
        return name
    if first == "batches":
        return f"arena/{rest}"
    return f"{'loop' if name.startswith(_OF_LOOP) else 'train'}/{name}"


def _reward(episode: Episode) -> float:
    """The largest return of a trained seat; the lowest number where the play failed."""
    return (
        -np.inf if episode.error or episode.void else max(trained_returns([episode]), default=0.0)
    )


def _cells(episode: Episode) -> list[Any]:
    """A row of the table, without step and kind."""
    turns = sorted(
        ((turn.order, r.role, turn) for r in episode.rollouts for turn in r.turns),
        key=lambda each: each[0],
    )
    text = "\n".join(
        f"{turn.messages[-1].content}\n{role}> {turn.completion.text}" for _, role, turn in turns
    )
    return [
        episode.arena,
        episode.task.id,
        ", ".join(f"{rollout.role}: {rollout.seat}" for rollout in episode.rollouts),
        None if episode.error or episode.void else float(_reward(episode)),
        ", ".join(f"{role} {value:+g}" for role, value in episode.returns.items()),
        text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} …",
        episode.failure or ("void" if episode.void else ""),
    ]
