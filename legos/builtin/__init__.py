"""The model that ships with legos: a small character-level model in the format of the hub."""

import filecmp
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from legos.errors import ModelError

__all__ = ["BUILTIN", "EXAMPLE", "RECOMMENDED", "builtin_path", "is_builtin"]

BUILTIN = "builtin"  # name of the model in settings and commands

EXAMPLE = "Nim: 5 left, last one wins.\nMoves: 1 2 3"
"""A prompt for this model: the position of a game, with the legal moves on the last line."""

RECOMMENDED: Mapping[str, object] = {
    "training.learning_rate": 3e-3,
    "training.learning_rate_end_fraction": 0.1,
    "training.lora_rank": 16,
    "training.staleness_limit": 1,
    "training.warmup_steps": 10,
}
"""Settings for this model in any arena. The learning rate is far too high for a large model, and
the policy changes so fast that only fresh samples are useful."""


def builtin_path() -> Path:
    """Folder of the built-in model, which loads like any model from the hub.

    Raises:
        ModelError: legos runs from an archive, so the model has no folder.
    """
    folder = resources.files("legos.builtin") / "model"
    if not isinstance(folder, Path):
        raise ModelError(
            f"the built-in model is inside an archive ({folder}) and needs a folder; "
            "install legos unpacked, as pip and uv do"
        )
    return folder


def is_builtin(model: str) -> bool:
    """Whether a model is the built-in one, by name or as a folder of its own with its tokenizer."""
    if model == BUILTIN:
        return True
    own, other = (folder / "tokenizer.json" for folder in (builtin_path(), Path(model)))
    return other.is_file() and filecmp.cmp(own, other, shallow=False)
