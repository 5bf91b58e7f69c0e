"""The command that adds an extra names this project, and fits how it was installed."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legos import installed

EDITABLE = json.dumps({"url": "file:///home/ann/le%20gos", "dir_info": {"editable": True}})
WHEEL = json.dumps({"url": "file:///tmp/legos_rl-1.0-py3-none-any.whl", "archive_info": {}})

COMMIT = json.dumps({"url": "https://ex.org/legos", "vcs_info": {"vcs": "git", "commit_id": "0ab"}})


def found(origin: str | None) -> Any:
    def distribution(name: str) -> Any:
        assert name == "legos-rl"
        return SimpleNamespace(version="1.0", read_text=lambda _: origin)

    return distribution


@pytest.mark.parametrize("origin", [None, WHEEL])
def test_pip_adds_an_extra_to_an_installed_package(
    origin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "distribution", found(origin))
    assert installed.adding("ray") == "pip install 'legos-rl[ray]'"
    assert installed.own_version() == "1.0"
    address = json.loads(WHEEL)["url"]
    needed = "legos-rl>=1.0" if origin is None else f"legos-rl @ {address}"
    assert installed.requirement() == (needed, None)


def test_a_commit_is_needed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "distribution", found(COMMIT))
    assert installed.requirement() == ("legos-rl @ git+https://ex.org/legos@0ab", None)


def test_uv_adds_it_in_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "distribution", found(EDITABLE))
    assert installed.adding("ray") == "uv sync --inexact --extra ray"
    assert installed.requirement() == ("legos-rl", Path("/home/ann/le gos"))


def test_a_folder_that_was_never_installed_is_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(_: str) -> Any:
        raise PackageNotFoundError("legos-rl")

    monkeypatch.setattr(installed, "distribution", distribution)
    assert installed.adding("torch") == "uv sync --inexact --extra torch"
    assert installed.own_version() == "unknown"
