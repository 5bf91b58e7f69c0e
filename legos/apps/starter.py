"""``legos arenas new`` and ``legos init``: write a small game that can be trained, and its test."""

import json
import keyword
import os
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from legos.errors import ConfigError, did_you_mean
from legos.files.atomic import write_file
from legos.installed import NAME, requirement

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
    given = _names(name)
    game, test = folder / given["file"], folder / given["test"]
    _write({game: "game", test: "test"}, given | {"test": f"{test}"})
    return game, test, f"{game}:{given['title']}"


def write_project(name: str, folder: Path, preset: str) -> None:
    """Write a project that runs: its dependencies, an arena, a test, settings and a README.

    Args:
        name: name of the project and of its arena, a Python name in lower case.
        folder: folder of the project; it is made if it does not exist.
        preset: name of the settings of the model, such as "mac-16gb".

    Raises:
        ConfigError: a name cannot be used, or a file exists already.
        CheckpointError: the files cannot be written.
    """
    given, (dependency, clone) = _names(name), requirement()
    presets = {path.name.removesuffix(".toml"): path for path in (_TEMPLATES / "presets").iterdir()}
    if preset not in presets:
        raise ConfigError(f"there is no preset {preset!r}{did_you_mean(preset, presets)}")
    if not name.isascii() or name.strip("_") != name:
        raise ConfigError(f"{name!r} cannot be the name of a project; begin and end with a to z")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; give another name, or --to a new one")
    path = json.dumps(f"{clone}")
    sources = f"\n[tool.uv.sources]\n{NAME} = {{ path = {path}, editable = true }}\n"
    given |= {
        "dependency": dependency,
        "run": given["title"].lower(),  # as legos train calls runs of a class
        "pip": f"-e {path}" if clone else f'"{dependency}"',
        "preset": presets[preset].read_text(encoding="utf-8").rstrip(),
        "sources": sources if clone else "",
    }
    files = {
        "pyproject.toml": "pyproject",
        given["file"]: "game",
        given["test"]: "test",
        "settings.toml": "settings",
        "README.md": "readme",
        ".gitignore": "ignore",
    }
    _write({folder / file: template for file, template in files.items()}, given)


def _names(name: str) -> dict[str, str]:
    """What the templates call an arena.

    Raises:
        ConfigError: it is no Python name in lower case, or that of a module.
    """
    title = "".join(part.capitalize() for part in name.split("_")) or name
    words = any(map(keyword.iskeyword, (name, title)))  # such as none, whose class would be None
    if not name.isidentifier() or words or name != name.lower():
        raise ConfigError(
            f"{name!r} cannot be the name of an arena's file; give a Python name in lower case, "
            "such as rock_paper"
        )
    if name in {"legos", "arenas", *sys.stdlib_module_names}:
        raise ConfigError(f"{name}.py would hide the module {name!r}; give another name")
    return {"name": name, "title": title, "file": f"{name}.py", "test": f"test_{name}.py"}


def _write(files: Mapping[Path, str], given: Mapping[str, str]) -> None:
    for path in files:
        if os.path.exists(path):  # noqa: PTH110 - no error for a name that is too long
            raise ConfigError(f"{path} exists already; give another name, or --to another folder")
    for path, template in files.items():
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        write_file(path, Template(text).substitute(given).rstrip() + "\n")
