"""How this copy of legos was installed, and how it or an extra of it is installed elsewhere."""

import json
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

NAME = "legos-rl"  # of the distribution; another project has the name of the package


class Requirement(NamedTuple):
    """What a project that needs this copy of legos writes down."""

    dependency: str  # of pyproject.toml
    clone: Path | None  # of the sources that it takes instead of a release


def own_version() -> str:
    """The version; "unknown" where the package runs from a folder that was never installed."""
    found = _installed()
    return found.version if found else "unknown"


def adding(extra: str) -> str:
    """The command that adds an extra of legos to the environment of this process."""
    (needed, clone), found = requirement(), _installed()
    if clone and Path(sys.prefix).parent.resolve() == clone.resolve():
        return f"uv sync --inexact --extra {extra}"
    installer = found.read_text("INSTALLER") if found else None
    pip = "uv pip" if installer and installer.strip() == "uv" else "pip"
    if clone:  # of an environment that is not its own, such as that of a project
        return f"{pip} install -e {quote(f'{clone}[{extra}]')}"
    wanted = needed.partition(">=")[0].replace(NAME, f"{NAME}[{extra}]", 1)
    return f"{pip} install {quote(wanted)}"


def requirement() -> Requirement:
    """This copy as a dependency: its clone, the address it was installed from, or its version."""
    found = _installed()
    if found is None:
        return Requirement(NAME, Path(__file__).parents[1])
    origin: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")  # PEP 610
    if origin.get("dir_info", {}).get("editable"):
        return Requirement(NAME, Path(unquote(urlsplit(f"{origin['url']}").path)))
    if not origin:
        return Requirement(f"{NAME}>={found.version}", None)
    url, version = origin["url"], origin.get("vcs_info", {})
    git = f"git+{url}@{version['commit_id']}" if version else url
    return Requirement(f"{NAME} @ {git}", None)


def _installed() -> Distribution | None:
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        return None
