"""``legos init``: write a project that trains at once."""

import shlex
from pathlib import Path

from legos.cli.output import show


def init(name: str, /, *, preset: str = "builtin", to: Path | None = None) -> None:
    """Write a project: an arena, its test, settings and a README.

    For example:

        legos init my_game
        legos init my_game --preset mac-16gb

    Args:
        name: Name of the project and of its arena, such as my_game.
        preset: Settings of the model: builtin, or for a Mac by its memory, mac-8gb to mac-128gb.
        to: Folder of the project; by default NAME.
    """
    from legos.apps.starter import write_project

    folder = Path(name) if to is None else to
    write_project(name, folder, preset)
    show(
        f"wrote a project in {folder}; its README.md says more, and this trains it:\n"
        f"  cd {shlex.quote(str(folder))} && uv run legos train --config settings.toml\n"
    )
