"""A report as one HTML file, which holds the programs of the page and loads nothing."""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib import resources
from importlib.util import find_spec
from os.path import normpath
from pathlib import Path
from string import Template
from typing import Any, Literal

import msgspec

from legos.errors import ConfigError
from legos.installed import adding

Plotly = Literal["inline", "cdn", "none"]

_PAGE = resources.files("legos.page")
_STATIC = _PAGE / "static"
_IMPORT = re.compile(r'(\bfrom ")(\.{1,2}/[^"]+)(";)')
_CDN = "https://cdn.plot.ly/plotly-3.7.0.min.js"


def report_html(values: Mapping[str, Any], *, plotly: Plotly | None = None) -> str:
    """The file of a report.

    A browser runs no script in it but those of the page: their digests are listed in the file, and
    the texts of plays are data.

    Args:
        values: what ``report_values`` returns.
        plotly: where plotly.js, which draws the curves, comes from: the file, which grows by 5 MB;
            the internet; or nowhere, and curves are simple lines. None: the file, if plotly is
            installed, otherwise nowhere.

    Raises:
        ConfigError: plotly is wanted and not installed.
    """
    if plotly is None:
        plotly = "none" if find_spec("plotly") is None else "inline"
    style = (_STATIC / "style.css").read_text(encoding="utf-8")
    title = escape(", ".join(run["name"] for run in values["runs"]))
    data = msgspec.json.encode(values, enc_hook=str).decode().replace("<", "\\u003c")
    scripts = [_import_map(), 'import "legos/report.js";']
    library, allowed = "", "data:"
    if plotly == "cdn":
        library, allowed = f'<script src="{_CDN}"></script>', f"data: {_CDN}"
    elif plotly == "inline":
        scripts.append(_plotly())
        library = f"<script>{scripts[-1]}</script>"
    for script in scripts:
        allowed += f" 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    page = (_PAGE / "report.html").read_text(encoding="utf-8")
    given = {"title": title, "style": style, "data": data, "library": library, "allowed": allowed}
    return Template(page).substitute(given, modules=scripts[0], start=scripts[1])


def _import_map() -> str:
    """The modules of the page, each under a name that its imports have in the file."""
    with resources.as_file(_STATIC) as place:
        found = {_name(path, place): _address(path, place) for path in place.rglob("*.js")}
    return msgspec.json.encode({"imports": found}).decode()


def _name(path: Path, place: Path) -> str:
    return f"legos/{path.relative_to(place).as_posix()}"


def _address(path: Path, place: Path) -> str:
    """A module with its imports under their names in the file, as the address of itself."""

    def named(found: re.Match[str]) -> str:
        return found[1] + _name(Path(normpath(path.parent / found[2])), place) + found[3]

    text = _IMPORT.sub(named, path.read_text(encoding="utf-8"))
    return f"data:text/javascript;base64,{b64encode(text.encode()).decode()}"


def _plotly() -> str:
    """The text of plotly.js.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        found = resources.files("plotly") / "package_data" / "plotly.min.js"
    except ModuleNotFoundError:
        raise ConfigError(
            f"plotly is not installed, which draws the curves; add it: {adding('view')}; "
            "or give --plotly none"
        ) from None
    return found.read_text(encoding="utf-8")
