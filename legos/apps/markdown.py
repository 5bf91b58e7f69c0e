"""Lines of Markdown tables, which the commands print and the pages contain, and their numbers."""

from collections.abc import Iterable, Sequence


def four_digits(value: float) -> str:
    """A number with four significant digits; from 10,000 on, all digits before the point."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:.0f}"


def table_line(cells: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |\n"


def table_head(titles: Sequence[str]) -> str:
    """The first two lines of a table."""
    return table_line(titles) + "|---" * len(titles) + "|\n"
