"""The page ``docs/start/first_hour.md`` works from top to bottom, in shorter runs."""

import io
import json
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from bench.server_processes import running
from metric_lines import read_metrics, read_steps

from arenas.kuhn import Kuhn
from legos.cli.process import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "start" / "first_hour.md").read_text()
COMMANDS = re.findall(r"^uv run legos (.*)$", PAGE, re.MULTILINE)


def write_files() -> None:
    """The files of the page, each a block after a line with its name, and the README's game."""
    for name, block in re.findall(r"^`([\w.]+)`:\n\n```\w*\n(.*?)```", PAGE, re.M | re.S):
        Path(name).write_text(block)
    [game] = re.findall(r"```python\n(from legos import Game\n.*?)```", README, re.S)
    Path("race.py").write_text(game)


def short(command: str) -> list[str]:
    """A command of the page; a run ends after a few steps."""
    words = shlex.split(command)
    if words[0] != "train":
        return words
    if "--steps" in words:
        at = words.index("--steps")
        del words[at : at + 2]
    return [*words, "--steps", "4" if "--resume" in words else "2"]


@pytest.mark.nightly
@pytest.mark.timeout(900)  # minutes where other programs run
def test_the_commands_work_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    assert {path.name for path in tmp_path.iterdir()} == {
        "doors.py",
        "questions.py",
        "race.py",
        "sums.jsonl",
    }
    assert len(COMMANDS) == 9
    for command in COMMANDS:
        if command.startswith("serve"):
            ask_the_server(command)
        else:
            assert main(short(command)) == 0, command
    runs = {path.name for path in Path("runs").iterdir()}
    assert runs == {"nim-1", "race-1", "doors-1", "questions-1", "kuhn-1"}


def ask_the_server(command: str) -> None:
    """The official client's answer is a move."""
    program = re.findall(r"```python\n(from openai.*?)```", PAGE, re.DOTALL)[0]
    said = io.StringIO()
    assert json.dumps(Kuhn().prompt(("KJ", ""), "first")) in program
    serving = running([sys.executable, "-m", "legos", *shlex.split(command)])
    names: dict[str, Any] = {}
    with serving as server, redirect_stdout(said):
        exec(program.replace("http://localhost:8000", server.url), names)
        names["client"].close()  # what the end of a process does
    assert said.getvalue().strip() in ("p", "b")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("command", "least"), [(COMMANDS[3], 0.65), (COMMANDS[4], 0.9)], ids=["doors", "questions"]
)
def test_the_arenas_are_learned_as_the_page_says(
    command: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    assert main(shlex.split(command)) == 0
    [run] = Path("runs").iterdir()
    assert (read_steps(run / "metrics.jsonl")[-1]["reward_mean"] or 0.0) > least


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_folder_of_step_five_is_trained_without_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(short(COMMANDS[0])) == 0
    caplog.clear()
    for command in COMMANDS[5:7]:
        assert main(shlex.split(command)) == 0, command
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_the_game_of_the_readme_is_learned_without_an_alarm(
    seed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    [command] = re.findall(r"^uv run legos (train --arena race.*)$", README, re.MULTILINE)
    assert main([*shlex.split(command), "--seed", seed]) == 0
    assert [record.getMessage() for record in caplog.records] == []
    assert all(line["applied"] for line in read_steps(Path("runs/race-1/metrics.jsonl")))
    last = read_metrics(Path("runs/race-1/evaluations.jsonl"))[-1]
    assert (last["eval/optimal_move_rate"] or 0.0) > 0.99
