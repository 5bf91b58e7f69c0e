"""The path of a newcomer: write a starter, change it into a game, check, train and play it."""

import io
import runpy
import sys
from pathlib import Path

import pytest
from short_runs import FEW

from legos.cli.process import main
from legos.run.metrics import read_steps

EDITS = {  # the starter is matching pennies
    'MOVES = ("heads", "tails")': 'MOVES = ("rock", "paper", "scissors")',
    "Both say heads or tails at the same time; the first wins if they agree, else the second.": (
        "Both show rock, paper or scissors at the same time."
    ),
    "        won = 1.0 if first == second else -1.0\n": (
        "        ahead = (MOVES.index(first) - MOVES.index(second)) % 3\n"
        "        won = (0.0, 1.0, -1.0)[ahead]\n"
    ),
}
TEST_EDITS = {'("heads", "heads"), ("heads", "tails")': '("rock", "paper"), ("rock", "rock")'}


def edit(path: Path, edits: dict[str, str]) -> None:
    text = path.read_text()
    for old, new in edits.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)


def test_a_new_game_is_written_checked_trained_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["arenas", "new", "rps"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("wrote rps.py and test_rps.py; change the rules, and try\n")
    for command in ("arenas check rps.py:Rps", "play rps.py:Rps --against random"):
        assert f"  uv run legos {command}\n" in told
    edit(Path("rps.py"), EDITS)
    edit(Path("test_rps.py"), TEST_EDITS)

    assert main(["arenas", "check", "rps.py:Rps"]) == 0
    checked = capsys.readouterr().out
    assert "FAILED" not in checked
    assert "value 0, uniform_exploitability 0, optimal_vs_random_win 0.333" in checked

    assert main(["train", "--arena", "rps.py:Rps", "--out", "run", "--steps", "3", *FEW]) == 0
    assert [line["step"] for line in read_steps(Path("run/metrics.jsonl"))] == [1, 2, 3]
    capsys.readouterr()

    monkeypatch.setattr(sys, "stdin", io.StringIO("lizard\nRock\n"))
    arguments = ["play", "rps.py:Rps", "--against", "run", "--play.illegal", "random"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "'lizard' is not one of: rock, paper, scissors" in told
    assert "second (run) said: " in told
    assert "\nrewards: first " in told

    assert main(["watch", "run", "--last", "1"]) == 0
    assert "rps, task rps/'start' (first: policy, second: policy)" in capsys.readouterr().out


def test_the_test_of_a_starter_passes(tmp_path: Path) -> None:
    """Also of a name with several words, and in another folder."""
    assert main(["arenas", "new", "two_words", "--to", str(tmp_path)]) == 0
    assert "class TwoWords(Game):" in (tmp_path / "two_words.py").read_text()
    tests = runpy.run_path(str(tmp_path / "test_two_words.py"))
    tests["test_scripted_players_find_nothing_wrong"]()
    [mark] = tests["test_one_wins_what_the_other_loses"].pytestmark
    for moves in mark.args[1]:
        tests["test_one_wins_what_the_other_loses"](moves)


@pytest.mark.parametrize("name", ["Rps", "1st", "class", "a-b", "dir/game", ""])
def test_a_name_that_is_no_module_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["arenas", "new", name, "--to", str(tmp_path)]) == 2
    assert "give a Python name in lower case" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_rps.py").write_text("mine")
    assert main(["arenas", "new", "rps", "--to", str(tmp_path)]) == 2
    assert "test_rps.py exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_rps.py"]
