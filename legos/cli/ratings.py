"""Members of a league as tables: their ratings, and what each has from each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from legos.cli.output import show_line, show_table


def interval(rated: Mapping[str, Any]) -> str:
    """The interval of a rating."""
    return f"{rated['low']:+.0f} to {rated['high']:+.0f}"


def show_members(
    rows: Mapping[str, Mapping[str, object]], title: str, matrix: Mapping[str, Mapping[str, str]]
) -> None:
    """Write members and their matrix, whose columns are the numbers of the rows.

    Args:
        rows: member -> column -> value, in the order of the ratings.
        title: heading of the matrix.
        matrix: member -> member -> figure of the first against the second, where there is one.
    """
    names = {member: f"{number} {member}" for number, member in enumerate(rows, start=1)}
    show_table("member", {names[member]: row for member, row in rows.items()})
    show_line("")
    show_table(
        title,
        {
            name: {
                str(number): matrix[member].get(other) for number, other in enumerate(rows, start=1)
            }
            for member, name in names.items()
        },
    )


def show_cycle(members: Sequence[str]) -> None:
    """Write the members of a cycle, if there is one."""
    if members:
        show_line(f"strongest cycle, of whom each beats the next: {', '.join(members)}")
