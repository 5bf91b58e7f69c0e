"""The model that ships with the kit: a small character model in the hub's format, ready to play."""

from importlib import resources
from pathlib import Path

from legos.errors import ModelError

__all__ = ["builtin_path"]


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
