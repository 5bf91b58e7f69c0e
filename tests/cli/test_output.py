"""Tables in a narrow terminal, and results that nothing else is mixed into."""

import json
import subprocess
import sys
from types import ModuleType

import pytest

from legos.cli.output import show, show_table
from legos.cli.process import main

NOISY = """
import os, subprocess, sys
from legos.cli.output import results_alone, show
kept = sys.stdout
print("before")
with results_alone():
    print("printed")
    kept.write("kept\\n")
    os.write(1, b"past Python\\n")
    subprocess.run([sys.executable, "-c", "print('by another process')"], check=True)
    show({"x": 1}, json=True)
print("after")
"""


def test_numbers_and_their_names_are_never_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {
        "arena": "../some/where/else/bluff.py:Bluff",
        "model": "builtin",
        "step": "500/500",
        "forked_from": "runs/nim-1@450",
        "reward_mean": -0.00293,
        "eval/optimal_move_rate": 0.9979,
        "eval/exploitability": 6.261e-05,
    }
    show_table("run", {"bluff-1": row, "nim-1": dict.fromkeys(row)})
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    for word in ("-0.00293", "0.9979", "6.261e-05", "exploitability", "optimal"):
        assert word in told


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_a_name_is_never_broken_however_long(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "kuhn-with-a-long-name-that-says-which-settings-were-changed-3"
    show_table("run", {name: {"step": "800/800", "eval/exploitability": 0.0279}, "nim-1": {}})
    told = capsys.readouterr().out
    assert name in told
    assert "800/800" in told
    assert "0.0279" in told
    assert columns == "40" or max(map(len, told.splitlines())) <= int(columns)


def test_a_large_number_has_no_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    show({"plays": 14000.0, "tokens/s": -415300.4, "MiB": 9999.7, "rate": 0.00042, "gap": 1e-9})
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in told] == ["14000", "-415300", "10000", "0.00042", "1e-09"]


def test_a_narrow_terminal_leaves_out_the_spare_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"state": "ended", "arena": "a-game-with-a-name", "model": "a-model-with-a-name"}
    for columns, shown in ((80, [*row]), (50, ["state", "arena"]), (20, ["state"])):
        monkeypatch.setenv("COLUMNS", str(columns))
        show_table("run", {"nim-1": row}, spare=("arena", "model"))
        assert capsys.readouterr().out.splitlines()[0].split() == ["run", *shown]


def test_a_result_is_alone_on_standard_output_whoever_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISY], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == 'before\n{\n  "x": 1\n}\nafter\n'
    for told in ("printed", "kept", "past Python", "by another process"):
        assert told in done.stderr


def test_json_is_all_that_a_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noisy() -> dict[str, object]:
        sys.stdout.write("the arena speaks\n")
        return {"found": 1}

    stub = ModuleType("legos.apps.arenas")
    vars(stub).update(list_arenas=noisy, described=lambda found: found)
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    assert main(["arenas", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"found": 1}
    assert told.err == "the arena speaks\n"
    assert main(["arenas"]) == 0
    assert capsys.readouterr().out.startswith("the arena speaks\n")
