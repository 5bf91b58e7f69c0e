"""The files of arenas, matchmakers and bots that are sent to a process of another node."""

import tempfile
from pathlib import Path

import pytest

from legos.arena.registry import made_of
from legos.config.resolve import resolve
from legos.errors import ArenaError
from legos.remote.ray.arena_file import TravellingFiles
from legos.wiring.ray import _files_of


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_same_name_finds_what_was_in_the_file(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / "node").mkdir()
    written = temporary / "mine.py"
    written.write_text("A, B = 1, 2\n")
    monkeypatch.chdir(temporary)
    files = TravellingFiles.of(["mine.py:A", "mine.py:B", "nim", ""])
    written.write_text("A = 3\n")
    monkeypatch.chdir(temporary / "node")
    files.load()
    assert [made_of(f"mine.py:{name}", "player") for name in "AB"] == [1, 2]
    [copy] = temporary.glob("legos-arena-*/mine.py")
    assert copy.parent.stat().st_mode & 0o077 == 0  # nobody else can replace it


def test_arenas_matchmakers_and_bots_travel(tmp_path: Path) -> None:
    places = [f"{tmp_path}/{name}.py" for name in ("arena", "bot", "late", "matchmaker")]
    for place in places:
        Path(place).write_text("X = 1\n")
    arena, bot, late, matchmaker = (f"{place}:X" for place in places)
    config = resolve(
        overrides={
            "arena": arena,
            "play.opponents": {bot: 0.2, "self": 0.8, "random": 0.0},
            "play.opponents_end": {late: 0.5, "self": 0.5},
        }
    ).config
    assert sorted(_files_of(config).texts) == places[:3]
    config = resolve(overrides={"play.matchmaker": matchmaker}).config
    assert list(_files_of(config).texts) == places[3:]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match=r"file .*away\.py cannot be read"):
        TravellingFiles.of([f"{tmp_path}/away.py:Mine"])
