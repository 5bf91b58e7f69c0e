"""How this copy of legos was installed, and how an extra is added to it."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

__all__ = ["adding", "own_version"]

NAME = "legos-rl"  # of the distribution; another project has the name of the package


def own_version() -> str:
    """The version; "unknown" where the package runs from a folder that was never installed."""
    try:
        return distribution(NAME).version
    except PackageNotFoundError:
        return "unknown"


def adding(extra: str) -> str:
    """The command that adds an extra: by uv in a clone, else by pip."""
    return f"uv sync --inexact --extra {extra}" if _is_clone() else f"pip install '{NAME}[{extra}]'"


def _is_clone() -> bool:
    """Whether the package is the source folder itself."""
    try:
        origin = distribution(NAME).read_text("direct_url.json")  # of PEP 610
    except PackageNotFoundError:
        return True
    found: dict[str, Any] = json.loads(origin or "{}")
    return bool(found.get("dir_info", {}).get("editable"))
