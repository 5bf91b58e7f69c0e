"""``legos report``: one file with what runs have done."""

from pathlib import Path
from typing import Literal

from legos.cli.output import Flag, show


def report(
    *run: str,
    out: Path | None = None,
    plotly: Literal["inline", "cdn", "none"] | None = None,
    images: Literal["png", "svg"] | None = None,
    json: Flag = False,
) -> None:
    """Write one HTML file with the curves, plays and settings of runs.

    Args:
        run: Run folders, names of runs in runs/, or folders of runs.
        out: File to write; by default report-RUN.html, or report.html of several runs.
        plotly: Where plotly.js, which draws the curves, comes from: the file (inline, 5 MB more),
            the internet (cdn), or nowhere (none: simple lines). By default inline, where plotly is
            installed.
        images: Also write the curves as pictures, into a folder beside the file.
        json: Print one JSON object.
    """
    from legos.apps.report import report as write

    show(write(run, out=out, plotly=plotly, images=images), json=json)
