"""The table of a page: what legos can do with each architecture."""

from collections.abc import Sequence

from architectures.report import ArchitectureReport

from legos.apps.markdown import table_head, table_line

__all__ = ["HEAD", "table_row"]

_COLUMNS = (
    "architecture", "trains", "checkpointing", "serves", "prefix cache", "bfloat16",
)  # fmt: skip
_WIDTHS = (21, 9, *map(len, _COLUMNS[2:]))


def table_row(report: ArchitectureReport) -> str:
    """The line of an architecture in the table."""
    if report.errors or not report.tried:
        verdict = "WRONG" if report.errors else "not tried"
        return table_line(_padded((report.name, verdict, *["-"] * (len(_COLUMNS) - 2))))
    return table_line(_padded((
        report.name,
        "yes (CPU)" if report.cpu_only else _word(report.trains),
        _word(report.checkpoints) if report.trains else "-",
        _word(report.serves),
        (report.prefixes or "no") if report.serves else "-",
        _word(report.bfloat16) if report.serves or report.trains else "-",
    )))  # fmt: skip


def _word(can: bool | None) -> str:
    return "yes" if can else "no"


def _padded(cells: Sequence[str]) -> list[str]:
    return [f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]


HEAD = table_head(_padded(_COLUMNS))
