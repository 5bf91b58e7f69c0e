"""How this copy of legos was installed, and how it or an extra of it is installed elsewhere."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["Requirement", "adding", "own_version", "requirement"]

NAME = "legos-rl"  # of the distribution; another project has the name of the package


class Requirement(NamedTuple):
    """What a project that needs this copy of legos writes down."""

    dependency: str  # of pyproject.toml
    clone: Path | None  # of the sources that it takes instead of a release


def own_version() -> str:
    """The version; "unknown" where the package runs from a folder that was never installed."""
    try:
        return distribution(NAME).version
    except PackageNotFoundError:
        return "unknown"


def adding(extra: str) -> str:
    """The command that adds an extra: by uv in a clone, else by pip."""
    if requirement().clone:
        return f"uv sync --inexact --extra {extra}"
    return f"pip install '{NAME}[{extra}]'"


def requirement() -> Requirement:
    """This copy as a dependency: its clone, the address it was installed from, or its version."""
    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        return Requirement(NAME, Path(__file__).parents[1])
    origin: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")  # PEP 610
    if origin.get("dir_info", {}).get("editable"):
        return Requirement(NAME, Path(unquote(urlsplit(f"{origin['url']}").path)))
    if not origin:
        return Requirement(f"{NAME}>={found.version}", None)
    url, version = origin["url"], origin.get("vcs_info", {})
    git = f"git+{url}@{version['commit_id']}" if version else url
    return Requirement(f"{NAME} @ {git}", None)
