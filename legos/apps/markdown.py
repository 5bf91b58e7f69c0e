"""Lines of Markdown tables, which the commands print and the pages contain."""

from collections.abc import Iterable, Sequence

__all__ = ["table_head", "table_line"]


def table_line(cells: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |\n"


def table_head(titles: Sequence[str]) -> str:
    """The first two lines of a table."""
    return table_line(titles) + "|---" * len(titles) + "|\n"
