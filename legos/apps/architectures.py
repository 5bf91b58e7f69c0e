"""``legos doctor --models``: what legos can do with each architecture, as a Markdown table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legos.apps.markdown import table_head, table_line
from legos.records.architecture import ArchitectureReport
from legos.wiring.architectures import check_architectures

__all__ = ["HEAD", "ArchitectureTable", "examine_architectures", "table_row"]

_COLUMNS = (
    "architecture", "trains", "checkpointing", "serves", "adapters", "prefix cache", "bfloat16",
)  # fmt: skip
_WIDTHS = (21, 9, *map(len, _COLUMNS[2:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureTable:
    """The reports of several architectures."""

    reports: Sequence[ArchitectureReport]

    @property
    def sound(self) -> bool:
        """Whether no result was wrong without a refusal."""
        return not any(report.errors for report in self.reports)

    def as_dict(self) -> dict[str, Any]:
        """Name -> report, as JSON values."""
        return {
            "architectures": {report.name: asdict(report) for report in self.reports},
            "sound": self.sound,
        }

    def notes(self) -> str:
        """The reasons and errors, each with the names that it belongs to, and their number."""
        reasons = _by_text((report.name, report.reasons) for report in self.reports)
        errors = _by_text((report.name, report.errors) for report in self.reports)
        tried = sum(report.tried for report in self.reports)
        wrong = sum(bool(report.errors) for report in self.reports)
        return "\n".join([
            "",
            *(f"- {', '.join(names)}: {text}" for text, names in reasons.items()),
            *(f"- WRONG: {', '.join(names)}: {text}" for text, names in errors.items()),
            "",
            f"{tried} of {len(self.reports)} were tried; {wrong} gave wrong results.",
            "",
        ])  # fmt: skip


def examine_architectures(
    names: Sequence[str] = (), *, show: Callable[[str], object] | None = None
) -> ArchitectureTable:
    """Check architectures on small random models; all of mlx-lm take minutes.

    Args:
        names: names of the architectures; none: all.
        show: receives the table line by line, as the reports come.

    Raises:
        ModelError: there is no architecture of a name.
    """
    coming = check_architectures(names)
    if show is not None:
        show(HEAD)
    reports: list[ArchitectureReport] = []
    for report in coming:
        reports.append(report)
        if show is not None:
            show(table_row(report))
    table = ArchitectureTable(reports=reports)
    if show is not None:
        show(table.notes())
    return table


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
        _word(report.adapters) if report.serves else "-",
        (report.prefixes or "no") if report.serves else "-",
        _word(report.bfloat16) if report.serves or report.trains else "-",
    )))  # fmt: skip


def _word(can: bool | None) -> str:
    return "yes" if can else "no"


def _padded(cells: Sequence[str]) -> list[str]:
    return [f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]


HEAD = table_head(_padded(_COLUMNS))


def _by_text(found: Iterable[tuple[str, Sequence[str]]]) -> Mapping[str, Sequence[str]]:
    """Text -> names that it belongs to."""
    names: dict[str, list[str]] = {}
    for name, texts in found:
        for text in texts:
            names.setdefault(text, []).append(name)
    return names
