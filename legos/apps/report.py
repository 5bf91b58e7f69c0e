"""``legos report``: write what runs have done into one file to keep or to send."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from legos.errors import ConfigError
from legos.files.atomic import write_file
from legos.page.report import report_values
from legos.page.report_file import Plotly, report_html
from legos.page.report_images import write_images
from legos.page.shown import ShownRuns


def report(
    runs: Sequence[str],
    *,
    out: Path | None,
    plotly: Plotly | None,
    images: Literal["png", "svg"] | None,
) -> Mapping[str, Any]:
    """Write a report of runs, also while they go on; the runs are not changed.

    Args:
        runs: run folders, names of runs in runs/, or folders of runs.
        out: the file; None: ``report-RUN.html``, or ``report.html`` of several runs.
        plotly: see ``report_html``.
        images: also write the curves as pictures, beside the file.

    Returns:
        The runs, the file and its size, the pictures, and what the report could not show.

    Raises:
        CheckpointError: a run is not found, or a file cannot be written.
        ConfigError: no run was named, ``out`` is no HTML file, or a library is missing.
    """
    if not runs:
        raise ConfigError(
            "report needs a run: `legos report RUN`; `legos runs` lists those in runs/"
        )
    if out is not None and out.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out is {out}; expected the name of a web page, such as report.html")
    with closing(ShownRuns(runs)) as shown:
        values = report_values([*shown.all().values()])
    if out is None:
        folders = [Path(run["folder"]).name for run in values["runs"]]
        out = Path(f"report-{folders[0]}.html" if len(folders) == 1 else "report.html")
    text = report_html(values, plotly=plotly)
    write_file(out, text)
    pictures = [] if images is None else write_images(values, out, images)
    missing = {run["name"]: run["missing"] for run in values["runs"] if run["missing"]}
    return {
        "runs": ", ".join(run["name"] for run in values["runs"]),
        "report": str(out),
        "size_mib": len(text.encode()) / 2**20,
        **({"pictures": len(pictures), "in": str(pictures[0].parent)} if pictures else {}),
        **(
            {"missing": {name: "; ".join(each) for name, each in missing.items()}}
            if missing
            else {}
        ),
    }
