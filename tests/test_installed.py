"""The command that adds an extra names this project, and fits how it was installed."""

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legos import installed

CLONE = "/home/ann/le gos"
EDITABLE = {"url": "file:///home/ann/le%20gos", "dir_info": {"editable": True}}
FOLDER = {"url": "file:///home/ann/le%20gos", "dir_info": {}}
WHEEL = {"url": "file:///tmp/legos_rl-1.0-py3-none-any.whl", "archive_info": {}}
COMMIT = {"url": "https://ex.org/legos", "vcs_info": {"vcs": "git", "commit_id": "0ab"}}


def found(origin: object, installer: str | None = "uv") -> Any:
    def distribution(name: str) -> Any:
        assert name == "legos-rl"
        files = {"direct_url.json": origin and json.dumps(origin), "INSTALLER": installer}
        return SimpleNamespace(version="1.0", read_text=files.__getitem__)

    return distribution


@pytest.mark.parametrize(
    ("origin", "needed", "wanted"),
    [
        (None, "legos-rl>=1.0", "legos-rl[ray]"),
        (WHEEL, f"legos-rl @ {WHEEL['url']}", f"legos-rl[ray] @ {WHEEL['url']}"),
        (FOLDER, f"legos-rl @ {FOLDER['url']}", f"legos-rl[ray] @ {FOLDER['url']}"),
        (
            COMMIT,
            "legos-rl @ git+https://ex.org/legos@0ab",
            "legos-rl[ray] @ git+https://ex.org/legos@0ab",
        ),
    ],
)
def test_an_extra_comes_from_where_the_package_came_from(
    origin: object, needed: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "distribution", found(origin))
    assert installed.requirement() == (needed, None)
    assert installed.adding("ray") == f"uv pip install '{wanted}'"
    assert installed.own_version() == "1.0"
    for installer in ("pip\n", "poetry 2.1", None):
        monkeypatch.setattr(installed, "distribution", found(origin, installer))
        assert installed.adding("ray") == f"pip install '{wanted}'"


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        (f"{CLONE}/.venv", "uv sync --inexact --extra ray"),
        (f"{CLONE}/mine/.venv", f"uv pip install -e '{CLONE}[ray]'"),  # of a project within it
        ("/home/ann/mine/.venv", f"uv pip install -e '{CLONE}[ray]'"),
    ],
)
def test_uv_syncs_the_environment_of_the_clone_alone(
    environment: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project that takes the clone has no such extra."""
    monkeypatch.setattr(installed, "distribution", found(EDITABLE))
    monkeypatch.setattr(sys, "prefix", environment)
    assert installed.requirement() == ("legos-rl", Path(CLONE))
    assert installed.adding("ray") == command


def test_a_folder_that_was_never_installed_is_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(_: str) -> Any:
        raise PackageNotFoundError("legos-rl")

    clone = Path(installed.__file__).parents[1]
    monkeypatch.setattr(installed, "distribution", distribution)
    monkeypatch.setattr(sys, "prefix", f"{clone}/.venv")
    assert installed.adding("torch") == "uv sync --inexact --extra torch"
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert installed.adding("torch") == f"pip install -e '{clone}[torch]'"
    assert installed.own_version() == "unknown"
