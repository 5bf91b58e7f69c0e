"""Log the same metrics under the same names to Weights & Biases, online or offline."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from legos.errors import ConfigError
from legos.files.lines import has_evaluation_alone

__all__ = ["WandbMode", "WandbTracker", "choose_mode"]

WandbMode = Literal["auto", "online", "offline"]

EVALUATED_STEP = "eval/step"

FLUSH_S = 1.0  # a process that is killed loses at most what it logged in this time


class WandbTracker:
    """One Weights & Biases run; its files are in ``folder/wandb``."""

    def __init__(
        self,
        folder: Path,
        *,
        mode: WandbMode = "auto",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the run, or continue the one that was started in this folder.

        Args:
            folder: the run folder; its name becomes the name of the run.
            mode: ``auto`` is online if a key is configured, otherwise offline.
            config: settings shown with the run.

        Raises:
            ConfigError: the run cannot be started (no network, a rejected key).
        """
        import wandb

        home = folder / "wandb"
        home.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "legos"),
                name=folder.name,
                id=_run_id(home),
                resume="allow",
                dir=folder,
                mode=choose_mode(mode),
                config=dict(config or {}),
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    x_transaction_log_flush_interval=FLUSH_S,
                ),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"cannot start Weights & Biases: {error}; use --track.wandb offline"
            ) from error
        self._run.define_metric(EVALUATED_STEP)
        self._run.define_metric("eval/*", step_metric=EVALUATED_STEP)

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Log the metrics of one step, without those that are None.

        W&B ignores what comes for an earlier step than the newest one, and a step is written once
        it is committed. Metrics of an evaluation that come late are therefore logged with the next
        step; ``eval/step`` is the step that they belong to, and the horizontal axis of their
        curves.
        """
        values = {name: value for name, value in metrics.items() if value is not None}
        if any(name.startswith("eval/") for name in values):
            values[EVALUATED_STEP] = step
        if has_evaluation_alone(metrics):
            self._run.log(values, step=max(step, self._run.step))
        else:
            self._run.log(values, step=step, commit=True)

    def close(self) -> None:
        """Write all pending data and end the run."""
        self._run.finish()


def choose_mode(mode: WandbMode) -> Literal["online", "offline"]:
    """Resolve ``auto``: online if W&B finds a key and ``WANDB_MODE`` is not offline."""
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE") == "offline":
        return "offline"
    import wandb

    return "online" if wandb.login(prompt=False, verify=False) else "offline"


def _run_id(home: Path) -> str:
    """The id stored in the folder, so that a resumed run continues the same curves."""
    kept = home / "run-id"
    if not kept.exists():
        kept.write_text(secrets.token_hex(4))
    return kept.read_text().strip()
