"""API keys come from a file or the environment, never from the command line itself."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from legos.cli.process import main

COMMANDS = {  # command -> the function of legos.apps that gets the key
    "serve": ["serve"],
    "view": ["view"],
    "chat": ["chat", "--url", "http://127.0.0.1:1"],
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The keys with which servers would be started or asked."""
    found: list[str | None] = []

    def run(*_: Any, options: Any = None, api_key: str | None = None, **__: Any) -> None:
        found.append(api_key if options is None else options.api_key)

    for name in COMMANDS:
        module = ModuleType(f"legos.apps.{name}")
        vars(module).update(serve=run, chat=run, view=run)
        monkeypatch.setitem(sys.modules, f"legos.apps.{name}", module)
    return found


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_key_comes_from_a_file_or_the_environment(
    command: list[str], keys: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGOS_API_KEY", "of-the-environment")
    (tmp_path / "key").write_text("of-the-file\n")
    assert main(command) == 0
    assert main([*command, "--api-key-file", str(tmp_path / "key")]) == 0
    assert keys == ["of-the-environment", "of-the-file"]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("", "holds 0 words"), ("a b", "holds 2 words; expected the key")],
)
def test_a_file_without_a_key_is_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "key").write_text(text)
    assert main(["serve", "--api-key-file", str(tmp_path / "key")]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert message in told
    assert "--api-key-file" in told


@pytest.mark.parametrize("command", ["serve", "view", "chat", "play", "eval", "tournament"])
def test_a_key_on_the_command_line_is_refused_and_not_repeated(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--api-key", "s3cret"]) == 2
    told = capsys.readouterr().err
    assert "give --api-key-file FILE, or set LEGOS_API_KEY" in told
    assert "s3cret" not in told
