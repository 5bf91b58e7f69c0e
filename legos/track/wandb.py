"""Open a run of Weights & Biases, online or offline, that belongs to a run folder."""

import logging
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, Literal

import psutil

from legos.errors import ConfigError
from legos.files.atomic import write_file

logger = logging.getLogger(__name__)
WandbMode = Literal["auto", "online", "offline"]
_Begun = Literal["online", "offline", "disabled"]  # disabled: nothing is written or sent
FLUSH_S = 1.0  # a process that is killed loses at most what it logged in this time
START_S = 30  # until an unreachable service is given up
_REJECTED = re.compile("returned error 40[13]")  # in a message of W&B's process
_SUMMARY = {"eval/*": "min,max,last", "train/*": "min,max,last"}


def start_wandb(
    folder: Path,
    *,
    mode: WandbMode = "auto",
    config: Mapping[str, Any],
    files: Sequence[Path] = (),
    **about: Any,
) -> Any:
    """Start the run, or continue the one that was started in this folder.

    Its files are in ``folder/wandb``. Where the service cannot be reached, the run is kept offline.

    Args:
        folder: the run folder; its name becomes the name of the run.
        mode: ``auto`` is online if a key is configured, otherwise offline.
        config: settings shown with the run.
        files: files of code that are kept with the run.
        about: ``tags``, ``notes``, ``group`` and ``entity`` of the run, as ``wandb.init`` has them.

    Raises:
        ConfigError: the run cannot be started, for instance because the key was rejected.
    """
    import wandb
    from wandb.errors import AuthenticationError, CommError

    folder = folder.absolute()  # W&B's process may have another working directory
    wandb.setup(wandb.Settings(silent=True))  # the console shows the run
    arguments: dict[str, Any] = {
        "project": os.environ.get("WANDB_PROJECT", "legos"),
        "name": folder.resolve().name,
        "id": own_id(folder),
        "resume": "allow",
        "dir": folder,
        "config": dict(config),
        **about,
    }

    def begin(mode: _Begun) -> Any:
        waits: dict[str, Any] = {"init_timeout": START_S} if mode == "online" else {}
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_transaction_log_flush_interval=FLUSH_S,
            **waits,
        )
        return wandb.init(mode=mode, settings=settings, **arguments)

    try:
        try:
            run = begin(choose_mode(mode))
        except CommError as error:
            rejected = isinstance(error, AuthenticationError) or _REJECTED.search(f"{error}")
            if mode == "online" or rejected:
                raise
            logger.warning("Weights & Biases cannot be reached, so the run is offline: %s", error)
            wandb.teardown()  # its process still holds the id of the run
            wandb.setup(wandb.Settings(silent=True))
            run = begin("offline")
    except wandb.Error as error:
        raise ConfigError(
            f"cannot start Weights & Biases: {error}; check the key (WANDB_API_KEY, or wandb "
            "login) and the connection, or use --track.wandb offline"
        ) from error
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    for names, summary in _SUMMARY.items():
        run.define_metric(names, step_metric="step", summary=summary)
    if (folder / "config.toml").is_file():
        run.save(str(folder / "config.toml"), base_path=str(folder), policy="now")
    for file in files:
        run.log_code(str(file.parent), include_fn=partial(eq, f"{file}"))
    return run


def kill_service() -> None:
    """End the process of W&B, which keeps this one from exiting while it cannot upload.

    Its file has what it was sent; ``wandb sync`` uploads it later. A process that replaces this one
    starts another: the old one holds the id of the run.
    """
    os.environ.pop("WANDB_SERVICE", None)  # its address
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name().startswith("wandb"):
                process.kill()


def choose_mode(mode: WandbMode) -> _Begun:
    """Resolve ``auto``: as ``WANDB_MODE`` says, or else online if W&B finds a key."""
    if mode != "auto":
        return mode
    if (chosen := os.environ.get("WANDB_MODE")) in ("offline", "disabled"):
        return chosen
    import wandb

    return "online" if wandb.login(prompt=False, verify=False) else "offline"


def own_id(folder: Path) -> str:
    """The id of a run folder, which is kept in it, so that a resumed run continues its curves."""
    kept = folder / "wandb" / "run-id"
    if not kept.exists():
        write_file(kept, secrets.token_hex(4))
    return kept.read_text().strip()
