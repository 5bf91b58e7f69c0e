"""Ray itself, which is an extra: the only place that imports it."""

import os
from importlib import import_module
from typing import Any

from legos.errors import ConfigError
from legos.installed import adding

# Under `uv run`, Ray would start every worker through uv, in an environment made on its node.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
try:
    ray: Any = import_module("ray")  # half typed, and missing where the extra is not installed
    _exceptions: Any = import_module("ray.exceptions")
except ModuleNotFoundError as missing:
    raise ConfigError(
        f"ray is not installed; add the extra ray ({adding('ray')}), or leave --ray out"
    ) from missing

RayError: type[Exception] = _exceptions.RayError
"""Any error of Ray, such as that of a process that has died, or of a result lost with its node."""
RayTaskError: type[Exception] = _exceptions.RayTaskError
"""A function of another process raised an error."""


def cause_of(error: Exception) -> Exception:
    """The error that was raised in the other process."""
    cause: object = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
