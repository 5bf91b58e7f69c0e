"""The path of a newcomer: write a starter, change it into a game, check, train and play it."""

import io
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from metric_lines import read_steps
from short_runs import FEW

from legos.cli.process import main

EDITS = {  # the starter is a race to ten by steps of one and two
    "END = 10": "END = 7",
    '("1", "2") if state[0] < END - 1 else ("1",)': '("1", "2", "3")[: END - state[0]]',
}


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
    assert main(["arenas", "new", "race"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("wrote race.py and test_race.py; change the rules, and try\n")
    for command in ("arenas check race.py:Race", "play race.py:Race --against random"):
        assert f"  uv run legos {command}\n" in told
    edit(Path("race.py"), EDITS)

    assert main(["arenas", "check", "race.py:Race"]) == 0
    checked = capsys.readouterr().out
    assert "FAILED" not in checked
    assert "value 0.714286, " in checked  # of 7 starts only 3, four steps from the end, is lost

    assert main(["train", "--arena", "race.py:Race", "--out", "run", "--steps", "3", *FEW]) == 0
    assert [line["step"] for line in read_steps(Path("run/metrics.jsonl"))] == [1, 2, 3]
    capsys.readouterr()

    monkeypatch.setattr(sys, "stdin", io.StringIO("lizard\n" + "1\n" * 7))
    arguments = ["play", "race.py:Race", "--against", "run", "--play.illegal", "random"]
    assert main([*arguments, "--seed", "1"]) == 0  # from 1, so that everybody moves
    told = capsys.readouterr().out
    assert "'lizard' is not one of: 1, 2, 3\n" in told
    assert "(run) said: " in told
    assert "\nrewards: ann " in told

    assert main(["watch", "run", "--last", "1"]) == 0
    assert "(ann: policy, bob: policy)" in capsys.readouterr().out


def test_the_test_of_a_starter_passes(tmp_path: Path) -> None:
    """Also of a name with several words, and in another folder."""
    assert main(["arenas", "new", "two_words", "--to", str(tmp_path)]) == 0
    assert "class TwoWords(Game):" in (tmp_path / "two_words.py").read_text()
    tests = runpy.run_path(str(tmp_path / "test_two_words.py"))
    tests["test_scripted_players_find_nothing_wrong"]()
    tests["test_whoever_moves_last_wins"]()


@pytest.mark.parametrize("name", ["Race", "1st", "class", "a-b", "dir/game", ""])
def test_a_name_that_is_no_module_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["arenas", "new", name, "--to", str(tmp_path)]) == 2
    assert "give a Python name in lower case" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_race.py").write_text("mine")
    assert main(["arenas", "new", "race", "--to", str(tmp_path)]) == 2
    assert "test_race.py exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_race.py"]


def test_the_commands_to_try_hold_in_a_folder_with_a_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["arenas", "new", "race", "--to", "my games"]) == 0
    printed = capsys.readouterr().out
    commands = [shlex.split(line) for line in printed.splitlines() if "uv run" in line]
    assert len(commands) == 3
    assert all("my games/race.py:Race" in words for words in commands)
    assert main(["arenas", "answers", "nim", "--plays", "1", "--to", "my games/a.jsonl"]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1])[-1] == "my games/a.jsonl"
    assert main(["init", "race", "--to", "my race"]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1])[:2] == ["cd", "my race"]


def test_a_person_is_asked_to_play_the_arena_by_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["arenas", "new", "race"]) == 0
    assert main(["tournament", "random", "person:ada", "--arena", "race.py:Race"]) == 2
    assert "play: legos play race.py:Race --against random" in capsys.readouterr().err
