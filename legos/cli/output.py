"""What the commands print: JSON for programs, aligned lines for people."""

import json as json_format
import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import ContextVar
from io import UnsupportedOperation
from typing import TextIO, cast

from rich.console import Console
from rich.table import Table

__all__ = ["results_alone", "show", "show_table"]

_results: ContextVar[TextIO] = ContextVar("results")  # where `show` writes, if not to sys.stdout


@contextmanager
def results_alone() -> Generator[None]:
    """Within the block nothing but what ``show`` writes reaches standard output.

    What else is printed goes to standard error: by an arena's own code, by a library past Python,
    by a process that is started meanwhile.
    """
    out = sys.stdout
    with ExitStack() as stack:
        try:
            printed, instead = out.fileno(), sys.stderr.fileno()
        except UnsupportedOperation:  # a notebook's stream, or a test's
            results = out
        else:
            out.flush()
            results = stack.enter_context(os.fdopen(os.dup(printed), "w", encoding=out.encoding))
            os.dup2(instead, printed)
            stack.callback(os.dup2, results.fileno(), printed)
            stack.callback(out.flush)
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.callback(_results.reset, _results.set(results))
        yield


def show(result: str | Mapping[str, object], *, json: bool = False) -> None:
    """Write a command's result to standard output.

    Args:
        result: text as it is, or named values, which may be mappings themselves.
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


def show_table(title: str, rows: Mapping[str, Mapping[str, object]]) -> None:
    """Write named rows as a table, a column for every value that a row has.

    Args:
        title: of the first column, which holds the rows' names.
        rows: name -> column -> value; None and absent ones are shown as a dash.
    """
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table(box=None, header_style="bold")
    for column in (title, *columns):
        numbers = any(isinstance(row.get(column), float) for row in rows.values())
        words = column.removeprefix("eval/").replace("_", "\n")
        table.add_column(words, overflow="fold", no_wrap=numbers)
    for name, row in rows.items():
        table.add_row(name, *(_cell(row.get(column)) for column in columns))
    Console().print(table, markup=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lines(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _lines(cast("Mapping[str, object]", value), f"{prefix}{name}.")
        elif value is None:
            yield f"{prefix}{name}", "-"
        elif isinstance(value, float):
            yield f"{prefix}{name}", f"{value:.4g}"
        else:
            yield f"{prefix}{name}", str(value)
