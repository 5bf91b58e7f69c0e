"""Open a run of trackio, which keeps experiments on this machine or in a Space of the hub."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from legos.errors import ConfigError
from legos.installed import adding


def start_trackio(
    folder: Path, *, config: Mapping[str, Any], group: str | None = None
) -> tuple[Any, Any]:
    """Start the run, or continue the one of this folder's name.

    Args:
        folder: the run folder; its name becomes the name of the run.
        config: settings shown with the run.
        group: runs of one group are shown together.

    Returns:
        The library and the run.

    Raises:
        ConfigError: trackio is not installed.
    """
    try:
        trackio = import_module("trackio")
    except ModuleNotFoundError:
        raise ConfigError(
            f"track.trackio is true but trackio is not installed; add it: {adding('trackio')}"
        ) from None
    project = os.environ.get("TRACKIO_PROJECT", "legos")
    name = folder.resolve().name
    run = trackio.init(
        project=project,
        name=name,
        group=group,
        config=dict(config),
        resume="allow",
        embed=False,
        auto_log_cpu=False,  # it would log every ten seconds
    )
    return trackio, run
