"""Architectures are checked in child processes, one of which may end."""

import json
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from legos.cli import main
from legos.wiring import architectures

pytestmark = pytest.mark.slow


def test_a_process_that_ends_is_one_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[BaseProcess] = []
    start = architectures._Child._start

    def start_and_kill_the_first(child: Any) -> None:
        start(child)
        started.append(child._process)
        if len(started) == 1:
            child._process.kill()

    monkeypatch.setattr(architectures._Child, "_start", start_and_kill_the_first)
    monkeypatch.setattr(architectures, "MOST_CHILDREN", 1)
    assert main(["doctor", "--models", "llama", "phi", "gemma3n"]) == 1
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| architecture ")
    assert [row.split()[1:4:2] for row in rows[:3]] == [
        ["llama", "WRONG"], ["phi", "yes"], ["gemma3n", "no"],
    ]  # fmt: skip
    assert "- WRONG: llama: its code ended the process with exit code -9" in rows
    assert rows[-1] == "3 of 3 were tried; 1 gave wrong results."
    assert len(started) == 2
    assert not any(process.is_alive() for process in started[:1])


def test_reports_can_be_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "phi", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] is True
    assert told["architectures"]["phi"]["prefixes"] == "any"


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "lama"]) == 2
    said = capsys.readouterr()
    assert "no architecture 'lama'; did you mean 'llama'?" in said.err
    assert said.out == ""
    assert main(["doctor", "llama"]) == 2
    assert "only after --models" in capsys.readouterr().err
