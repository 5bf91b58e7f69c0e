"""Write the results of commands: JSON for programs, aligned lines and tables for people."""

import json as json_format
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import ContextVar
from io import UnsupportedOperation
from textwrap import fill
from typing import Annotated, Any, TextIO, cast

from cyclopts import Parameter
from rich.measure import Measurement
from rich.table import Table

from legos.apps.markdown import four_digits
from legos.track.output import OutputConsole

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""An option without a value, off unless it is on the command line."""

_INDENTED: dict[str, Any] = {
    **dict.fromkeys(("initial_indent", "subsequent_indent"), "  "),
    **dict.fromkeys(("break_long_words", "break_on_hyphens"), False),
}
_results: ContextVar[TextIO] = ContextVar("results")  # where `show` writes, if not to sys.stdout


@contextmanager
def results_alone() -> Generator[None]:
    """Within the block, only what ``show`` writes reaches standard output.

    Everything else goes to standard error, also the output of an arena's code, of C libraries and
    of child processes.
    """
    out = sys.stdout
    with ExitStack() as stack:
        try:
            stdout, stderr = out.fileno(), sys.stderr.fileno()
        except UnsupportedOperation:  # a stream of a notebook or of a test
            results = out
        else:
            out.flush()
            results = stack.enter_context(
                os.fdopen(os.dup(stdout), "w", encoding=out.encoding, errors=out.errors)
            )
            os.dup2(stderr, stdout)
            stack.callback(os.dup2, results.fileno(), stdout)
            stack.callback(setattr, sys, "__stdout__", sys.__stdout__)
            sys.__stdout__ = results  # for a process that takes the place of this one
            stack.callback(out.flush)
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.callback(_results.reset, _results.set(results))
        yield


def show(result: str | Mapping[str, object], *, json: bool = False) -> None:
    """Write the result of a command to standard output.

    Args:
        result: text, or names and values; a value may be a mapping of the same kind.
        json: write one JSON object instead of lines.
    """
    if isinstance(result, str):
        text = result
    elif json:
        text = json_format.dumps(result, indent=2) + "\n"
    else:
        lines = list(_lines(result))
        width = max((len(name) for name, _ in lines), default=0)
        text = "".join(f"{name:<{width}}  {value}\n" for name, value in lines)
    out = _results.get(sys.stdout)
    out.write(text)
    out.flush()


def show_line(text: str) -> None:
    """Write a line to standard output."""
    show(f"{text}\n")


def show_table(
    title: str, rows: Mapping[str, Mapping[str, object]], *, spare: Sequence[str] = ()
) -> None:
    """Write named rows as a table, or one after the other where the terminal is too narrow.

    Args:
        title: heading of the first column, which has the names of the rows.
        rows: name -> column -> value; None is shown as a dash.
        spare: columns that a narrow terminal leaves out, the last one first.
    """
    console = OutputConsole()
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    spared = [column for column in spare if column in columns]
    for number in range(len(spared), -1, -1):
        shown = [column for column in columns if column not in spared[number:]]
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in (title, *shown):
            table.add_column(column, no_wrap=True)
        for name, row in rows.items():
            table.add_row(name, *(_text(row.get(column)) for column in shown))
        any_width = console.options.update(max_width=sys.maxsize)
        if Measurement.get(console, any_width, table).maximum <= console.width:
            console.print(table, markup=False)
            return
    for name, row in rows.items():
        values = ", ".join(f"{column} {_text(row.get(column))}" for column in columns)
        show(f"{name}\n{fill(values, console.width, **_INDENTED)}\n")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return four_digits(value) if isinstance(value, float) else str(value)


def _lines(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _lines(cast("Mapping[str, object]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(value)
