"""``legos arenas new``: write a small game that can be trained, and its test."""

import keyword
import os
from importlib import resources
from pathlib import Path
from string import Template

from legos.errors import ConfigError
from legos.files.atomic import write_file

__all__ = ["write_starter"]

_TEMPLATES = resources.files("legos.apps") / "templates"


def write_starter(name: str, folder: Path) -> tuple[Path, Path, str]:
    """Write the file of a new arena and that of its test.

    Args:
        name: name of the arena, a Python name in lower case.
        folder: their folder; it is made if it does not exist.

    Returns:
        The two files, and the arena's name for ``--arena``.

    Raises:
        ConfigError: the name cannot be used, or a file exists already.
        CheckpointError: the files cannot be written.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"{name!r} cannot be the name of an arena's file; give a Python name in lower case, "
            "such as rock_paper"
        )
    game, test = folder / f"{name}.py", folder / f"test_{name}.py"
    title = "".join(part.capitalize() for part in name.split("_")) or name
    for path in (game, test):
        if os.path.exists(path):  # noqa: PTH110 - no error for a name that is too long
            raise ConfigError(f"{path} exists already; give another name, or --to another folder")
    given = {"title": title, "file": game.name, "test": test}
    for path, template in ((game, "game.txt"), (test, "test.txt")):
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        write_file(path, Template(text).substitute(given))
    return game, test, f"{game}:{title}"
