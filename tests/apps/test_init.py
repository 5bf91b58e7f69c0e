"""``legos init`` writes a project whose test passes and that trains."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from launched import finished
from metric_lines import read_steps

from legos import installed
from legos.cli.process import main
from legos.config.resolve import read_config

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable, "-m")


@pytest.mark.slow
def test_a_project_passes_its_test_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "two_words"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command == "  cd two_words && uv run legos train --config settings.toml"
    monkeypatch.chdir("two_words")
    finished((*PYTHON, "pytest", "-q", "-p", "no:cacheprovider"))
    few = ("--steps", "3", "--play.tasks-per-step", "8")
    assert main([*command.partition("uv run legos ")[2].split(), *few]) == 0
    steps = read_steps(Path("runs/twowords-1/metrics.jsonl"))  # as its README says
    assert [line["step"] for line in steps] == [1, 2, 3]


@pytest.mark.parametrize("page", ["README.md", "docs/start/first_hour.md"])
def test_a_game_of_ones_own_begins_with_a_project(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section = (ROOT / page).read_text().partition("A game of your own\n")[2]
    project, train = re.findall(r"uv run legos .*?(?=[`\n])", section)[:2]
    assert project == "uv run legos init race"
    assert main(project.split()[3:]) == 0
    assert capsys.readouterr().out.endswith(f"  cd race && {train}\n")


def test_a_preset_names_the_model(tmp_path: Path) -> None:
    assert main(["init", "mine", "--to", str(tmp_path), "--preset", "mac-16gb"]) == 0
    settings = read_config(tmp_path / "settings.toml")
    assert (settings.arena, settings.model) == ("mine.py:Mine", "Qwen/Qwen3-1.7B")
    assert settings.training.gradient_checkpointing


@pytest.mark.parametrize("clone", [None, Path("/a b/c")])
def test_a_project_needs_the_legos_that_wrote_it(
    clone: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = installed.Requirement("legos-rl" if clone else "legos-rl>=0.1.0", clone)
    monkeypatch.setattr("legos.apps.starter.requirement", lambda: needed)
    assert main(["init", "mine", "--to", str(tmp_path)]) == 0
    written = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert written["project"]["dependencies"] == [needed.dependency]
    readme = (tmp_path / "README.md").read_text()
    if clone is None:
        assert "tool" not in written
        assert 'pip install "legos-rl>=0.1.0" pytest' in readme
    else:
        assert written["tool"]["uv"]["sources"] == {
            "legos-rl": {"path": "/a b/c", "editable": True}
        }
        assert 'pip install -e "/a b/c" pytest' in readme


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "--preset", "mac-16"], "no preset 'mac-16'; did you mean 'mac-16gb'?"),
        (["json"], "json.py would hide the module 'json'; give another name"),
        (["none"], "'none' cannot be the name of an arena's file; give a Python name"),
        (["größe"], "'größe' cannot be the name of a project; begin and end with a to z"),
        (["My-Game"], "give a Python name in lower case, such as rock_paper"),
    ],
)
def test_what_no_project_is_written_for(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_shell_completes_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "--shell", "bash"]) == 0
    [script] = tmp_path.rglob("legos")
    assert f"{script}" in capsys.readouterr().out
    assert "tournament" in script.read_text()
