"""The curves of a report as pictures, drawn by matplotlib."""

import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from legos.errors import ConfigError
from legos.files.atomic import refusals_named, write_file
from legos.installed import adding

_UNUSUAL = re.compile(r"[^\w.-]")  # in a file's name


def write_images(
    values: Mapping[str, Any], report: Path, form: Literal["png", "svg"]
) -> list[Path]:
    """Write a picture of each metric into the folder ``NAME-images`` beside ``NAME.html``.

    Args:
        values: what ``report_values`` returns.
        report: the file of the report.
        form: format of the pictures.

    Returns:
        The pictures.

    Raises:
        ConfigError: matplotlib is not installed.
        CheckpointError: the files cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ConfigError(
            f"matplotlib is not installed, which draws pictures; add it: {adding('plot')}; "
            "or leave --images out"
        ) from None
    place = report.with_name(f"{report.stem}-images")
    written: list[Path] = []
    with refusals_named(place):
        place.mkdir(exist_ok=True)
        for name in values["names"]:
            data = BytesIO()
            figure: Any = Figure(figsize=(6, 3.6), layout="constrained")
            _draw(figure.add_subplot(), name, values)
            figure.savefig(data, format=form, dpi=150)
            written.append(place / f"{_UNUSUAL.sub('-', name)}.{form}")
            write_file(written[-1], data.getvalue())
    return written


def _draw(axes: Any, name: str, values: Mapping[str, Any]) -> None:
    """Each run as a line; runs that differ in their seeds alone as a mean and a band."""
    families: dict[str, list[tuple[str, Any, Any]]] = {}
    of_run = {run["name"]: run.get("family", run["name"]) for run in values["runs"]}
    for curve in values["series"]:
        if curve["name"] == name:
            members = families.setdefault(of_run[curve["run"]], [])
            members.append((curve["run"], np.array(curve["x"]), np.array(curve["y"])))
    marker = "o" if name.startswith("eval/") else ""
    for members in families.values():
        start, end = max(x[0] for _, x, _ in members), min(x[-1] for _, x, _ in members)
        x = members[0][1][(members[0][1] >= start) & (members[0][1] <= end)]
        ys = np.array([np.interp(x, *curve) for _, *curve in members], float)
        label = _plain(", ".join(run for run, *_ in members))
        [line] = axes.plot(x, ys.mean(0), marker=marker, markersize=3, label=label)
        if len(members) > 1:
            axes.fill_between(x, ys.min(0), ys.max(0), color=line.get_color(), alpha=0.2)
    axes.set(xlabel="step", ylabel=_plain(name))
    axes.grid(alpha=0.3)
    if len(of_run) > 1:
        axes.legend(fontsize="small")


def _plain(text: str) -> str:
    """A text that matplotlib draws as it is: no formula, and no label that it leaves out."""
    return f" {text}".replace("$", r"\$")
