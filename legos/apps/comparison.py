"""The evaluations before and after a run, side by side."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from legos.loop.evaluation import flat_figures

__all__ = ["comparison"]


def comparison(first: Mapping[str, Any], last: Mapping[str, Any], title: str) -> Table:
    """A table with a row for every figure; ``title`` names the arena."""
    before, after = flat_figures(first), flat_figures(last)
    table = Table(title=title, box=None, header_style="bold", title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    for name in (*after, *(before.keys() - after.keys())):
        if name != "eval/policy_version":
            label = name.removeprefix("eval/").replace("_", " ")
            table.add_row(label, *(_figure(figures.get(name)) for figures in (before, after)))
    return table


def _figure(value: float | None) -> str:
    """A float with four decimals, a count as it is, a dash for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
