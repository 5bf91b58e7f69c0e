"""The model that ships with the kit: a small character model in the hub's format, ready to play."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from legos.errors import ModelError

__all__ = ["BUILTIN", "EXAMPLE", "RECOMMENDED", "builtin_path"]

BUILTIN = "builtin"  # the name by which settings and commands know it

EXAMPLE = "Nim: 5 left, last one wins.\nMoves: 1 2 3"
"""What the model can be asked: a position of a game, and its moves on the last line."""

RECOMMENDED: Mapping[str, object] = {
    "training.kl_coef": 0.0,
    "training.learning_rate": 3e-3,
    "training.learning_rate_end_fraction": 0.1,
    "training.lora_rank": 16,
    "training.staleness_limit": 1,
    "training.warmup_steps": 10,
}
"""Settings that suit this model whatever it plays: its learning rate would wreck a large model, and
at that rate the samples of older policies are soon too far off."""


def builtin_path() -> Path:
    """Return the folder of the built-in model, which opens like any model from the hub.

    Raises:
        ModelError: the kit runs from an archive, where a model has no folder.
    """
    folder = resources.files("legos.builtin") / "model"
    if not isinstance(folder, Path):
        raise ModelError(
            f"the built-in model is inside an archive ({folder}) and needs a folder; "
            "install legos unpacked, as pip and uv do"
        )
    return folder
