"""Show a run on the console: a live table on a terminal, otherwise a line every few steps."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from legos.protocols import Tracker
from legos.track.output import OutputConsole

Metrics = Mapping[str, float | int | None]
T = TypeVar("T")

_GAP = 2  # spaces between columns
_REFRESH_S = 0.1
_ROWS = 10  # number of newest steps shown
_EVALUATED_ROWS = 6  # number of newest evaluated steps shown above them
_TRENDS, _BARS = 3, "▁▂▃▄▅▆▇█"  # metrics below the table, and the heights of their values
_WIDTH = 32  # bars of a metric
_FIRST_S = 2.0  # without a terminal, a line at the latest after this time before the first step
_SLOW_S = 10.0  # the same after a step
_LONG_ANSWER = 8  # tokens of an answer from which on tokens per second are shown, not moves


class Column(NamedTuple):
    """One column of the table."""

    title: str
    metric: str  # name of the logged metric
    form: str  # format specification of the value
    rank: int  # a narrow terminal omits the columns with the highest rank first
    of_arena: str = ""  # name of the metric of one arena of a mix, with {} for the arena


COLUMNS = (
    Column("reward", "reward_mean", "+.3f", 0, "batches/{}/reward_mean"),
    Column("loss", "loss", "+.4f", 5),
    Column("entropy", "entropy", ".3f", 3),
    Column("KL", "kl_divergence", ".4f", 4),
    Column("clipped", "clip_fraction", ".3f", 6),
    Column("stale", "staleness_max", ".0f", 8),
    Column("samples", "samples_per_step", ".0f", 9),
    Column("GiB", "memory/peak_gib", ".2f", 10),
    Column("moves/s", "play/moves_per_s", ".0f", 7),
    Column("tokens/s", "play/tokens_per_s", ".0f", 7),
    Column("evaluated", "eval/reward_mean", "+.3f", 1, "eval/{}/reward_mean"),
    Column("optimal", "eval/optimal_move_rate", ".4f", 1, "eval/{}/optimal_move_rate"),
    Column("exploitability", "eval/exploitability", ".4f", 1, "eval/{}/exploitability"),
    Column("joint value", "eval/joint_value", ".3f", 1, "eval/{}/joint_value"),
    Column("win v random", "eval/vs_random_win", ".3f", 2, "eval/{}/vs_random_win"),
)


class ConsoleTracker(Tracker):
    """Shows steps as they are logged; a column appears with its first value.

    On a terminal the table is redrawn in place, at most ten times per second. Otherwise one plain
    line is printed for the first step, every ``every``-th step, each evaluated step, the last step,
    and every step that ends ten seconds or more after the line before. The line of a step that is
    evaluated waits for its metrics. Both forms show the time that is left, and how
    many steps were skipped, that is their update was not applied.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        console: Console | None = None,
        every: int = 10,
        evaluate_every: int = 0,
        arenas: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the display.

        Args:
            num_steps: length of the run in steps.
            console: console to write to; standard output by default.
            every: number of steps between plain lines.
            evaluate_every: number of steps between evaluations, whose metrics come later than the
                metrics of their step; 0: the last step alone is evaluated.
            arenas: names of the run's arenas; of several, each has its own columns.
            clock: returns a time in seconds.
        """
        self._num_steps = num_steps
        self._console = console or OutputConsole()
        self._every = every
        self._evaluate_every = evaluate_every
        self._arenas = arenas if len(arenas) > 1 else ()
        self._clock = clock
        self._began = self._shown_at = clock()  # the latter: time at which a step was shown
        self._next_wait = self._began + _FIRST_S  # time from which on a line says what the run does
        self._ended_at: dict[int, float] = {}  # step -> time at which it ended; the newest
        self._doing = ""  # what the run does
        self._rows: dict[int, Metrics] = {}  # newest steps, in ascending order
        self._evaluated: dict[int, Metrics] = {}  # newest evaluated steps, in ascending order
        self._seen: set[str] = set()
        self._history: dict[str, list[float]] = {}  # metric -> its values in all steps
        self._skipped = 0  # steps whose update was not applied
        self._pending = False  # the newest step has not been shown yet
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def log(self, metrics: Metrics, *, step: int) -> None:
        """Show one step; metrics of an evaluation that come later are added to their step."""
        self._note_names(metrics)
        if self._live is not None:
            self._note_values(metrics)
        evaluated = any(name.startswith("eval/") for name in metrics)
        first = not self._ended_at
        applied = (v for name, v in metrics.items() if name.rpartition("/")[2] == "applied")
        self._skipped += 0 in applied
        late = step < max(self._rows, default=step)
        if step not in self._rows and not late:
            if evaluated:  # before the first step
                self._began = self._clock()
            else:
                before = self._ended_at or {step - 1: self._began}
                self._ended_at = _newest({**before, step: self._clock()}, _ROWS)
        metrics = {**self._rows.get(step, {}), **metrics}
        if not late or step in self._rows:
            self._rows = _newest({**self._rows, step: metrics}, _ROWS)
        if evaluated:
            self._evaluated = _newest({**self._evaluated, step: metrics}, _EVALUATED_ROWS)
        limit_s = _SLOW_S if self._live is None else _REFRESH_S
        due = first or self._clock() - self._shown_at >= limit_s
        if self._live is None:
            due = due or step % self._every == 0
            due = evaluated or (due and not self._awaits_evaluation(step))
        if due:
            self._show(step, metrics)
        printed_late = late and self._live is None  # the newest step may still not be shown
        self._pending = not due or (self._pending and printed_late)

    def wait(self, doing: str, *, now: bool = False) -> None:
        """Show what the run does; without a terminal, more and more seldom until a step ends."""
        self._doing = doing
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif now or self._clock() >= self._next_wait:
            self._next_wait = self._clock() + 2 * max(self._clock() - self._shown_at, _SLOW_S)
            self.say(doing)

    def say(self, text: str) -> None:
        """Print a line of text, on a terminal above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Show the last step and leave the table on the terminal, unless that was closed."""
        self._doing = ""
        with suppress(OSError):
            if self._pending:
                self._show(*list(self._rows.items())[-1])
        with suppress(OSError):
            if self._live is not None:
                self._live.update(self._table())
                self._live.stop()  # it draws the table, and gives standard error back
        self._live = None

    def _note_names(self, metrics: Metrics) -> None:
        """Remember which columns have values; of the two speeds, one."""
        moves, tokens = metrics.get("play/moves_per_s"), metrics.get("play/tokens_per_s")
        seen = {name for name, value in metrics.items() if value is not None}
        if not metrics.get("kl_divergence"):  # 0 also where no reference is computed
            seen.discard("kl_divergence")
        if moves is not None and tokens is not None:
            texts = "play/tokens_per_s" in self._seen or tokens >= _LONG_ANSWER * moves
            seen.discard("play/moves_per_s" if texts else "play/tokens_per_s")
            if not tokens:  # nothing is sampled, as in imitation
                seen -= {"play/moves_per_s", "play/tokens_per_s"}
        self._seen |= seen

    def _note_values(self, metrics: Metrics) -> None:
        """Remember the values of all columns, for their bars."""
        for column in self._columns():
            value = metrics.get(column.metric)
            if value is not None and math.isfinite(value):
                self._history.setdefault(column.metric, []).append(float(value))

    def _awaits_evaluation(self, step: int) -> bool:
        """Whether the metrics of an evaluation of this step come later."""
        every = self._evaluate_every
        return step == self._num_steps or bool(every and step and step % every == 0)

    def _show(self, step: int, metrics: Metrics) -> None:
        """Print the line of a step, or draw the whole table."""
        self._shown_at = self._clock()
        self._next_wait = self._shown_at + (_SLOW_S if step else _FIRST_S)
        if self._live is None:
            self.say(self._line(step, metrics))
        else:
            self._live.update(self._table(), refresh=True)

    def _time_left(self) -> str:
        """How long the run goes on, by the time of the newest steps."""
        if not self._ended_at:
            return ""
        (before, start), *_, (step, end) = [*self._ended_at.items()] * 2
        return time_left((end - start) / max(step - before, 1) * (self._num_steps - step))

    def _columns(self) -> list[Column]:
        """The columns with a value; with several arenas, those of each carry its name."""
        return [
            column
            for general in COLUMNS
            for column in (general, *self._by_arena(general))
            if column.metric in self._seen
        ]

    def _by_arena(self, column: Column) -> list[Column]:
        """The column of each arena of a mix."""
        return [
            column._replace(title=f"{arena} {column.title}", metric=column.of_arena.format(arena))
            for arena in (self._arenas if column.of_arena else ())
        ]

    def _line(self, step: int, metrics: Metrics) -> str:
        cells = [
            f"{column.title} {_cell(metrics, column)}"
            for column in self._columns()
            if metrics.get(column.metric) is not None
        ]
        skipped = f"skipped {self._skipped}" if self._skipped else ""
        ends = [text for text in (skipped, self._time_left()) if text]
        return "  ".join([f"step {step}/{self._num_steps}", *cells, *ends])

    def _table(self) -> Group:
        columns = self._columns()
        rows = self._evaluated | self._rows
        lines = [
            [str(step), *(_cell(rows[step], column) for column in columns)] for step in sorted(rows)
        ]
        titles = ["step", *(column.title for column in columns)]
        widths = [max(map(len, cells)) for cells in zip(titles, *lines, strict=True)]
        left_out = _left_out(columns, widths, self._console.width)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in titles:
            if title not in left_out:
                table.add_column(Text(title), justify="right", no_wrap=True)
        for line in lines:
            cells = zip(titles, line, strict=True)
            table.add_row(*(cell for title, cell in cells if title not in left_out))
        skipped = f"{self._skipped} skipped" if self._skipped else ""
        # A resumed run has done some before its first row.
        done = f"{max(self._rows) if self._rows else 'run'} of {self._num_steps} steps"
        texts = (done, skipped, self._time_left(), self._doing)
        caption = Text(", ".join(text for text in texts if text), "dim", overflow="ellipsis")
        return Group(*([table, *self._trends()] if lines else []), caption)

    def _trends(self) -> Iterator[Text]:
        """The most important metrics over the whole run, each as a row of bars."""
        important = sorted(self._columns(), key=lambda column: column.rank)
        moving = [c for c in important if len(self._history.get(c.metric, ())) > 1][:_TRENDS]
        width = max((len(column.title) for column in moving), default=0)
        for column in moving:
            values = self._history[column.metric]
            first, last = (format(value, column.form) for value in (values[0], values[-1]))
            text = f"{column.title:>{width}} {_bars(values)}  {first} → {last}"
            yield Text(text, no_wrap=True, overflow="ellipsis")


def time_left(seconds: float) -> str:
    """``12 min left``; empty for less than a minute."""
    if seconds < 60:
        return ""
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def _bars(values: Sequence[float]) -> str:
    """Values as bars from the lowest to the highest; of many, the means of equal parts."""
    number = min(len(values), _WIDTH)
    ends = [len(values) * index // number for index in range(number + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(ends)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / ((high - low) or 1.0)
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _newest(rows: Mapping[int, T], number: int) -> dict[int, T]:
    """The values of the last steps, in ascending order."""
    return dict(sorted(rows.items())[-number:])


def _left_out(columns: Sequence[Column], widths: Sequence[int], room: int) -> set[str]:
    """The least important columns, as many as must be omitted to fit the terminal."""
    left_out: set[str] = set()
    titles = ["step", *(column.title for column in columns)]
    for column in sorted(columns, key=lambda column: column.rank, reverse=True):
        shown = [w for title, w in zip(titles, widths, strict=True) if title not in left_out]
        if sum(shown) + _GAP * (len(shown) - 1) <= room:
            break
        left_out.add(column.title)
    return left_out


def _cell(metrics: Metrics, column: Column) -> str:
    value = metrics.get(column.metric)
    return "" if value is None else format(value, column.form)
