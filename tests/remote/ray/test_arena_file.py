"""The file of an arena that is sent to a process of another node."""

import tempfile
from pathlib import Path

import pytest

from legos.errors import ArenaError
from legos.remote.ray.arena_file import TravellingArena


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_process_gets_the_text_of_the_file(tmp_path: Path, temporary: Path) -> None:
    written = tmp_path / "mine.py"
    written.write_text("A = 1\n")
    arena = TravellingArena.of(f"{written}:Mine")
    written.write_text("A = 2\n")
    place, _, name = arena.here().rpartition(":")
    assert (Path(place).read_text(), Path(place).name, name) == ("A = 1\n", "mine.py", "Mine")
    assert Path(place).parent.stat().st_mode & 0o077 == 0  # nobody else can replace it


def test_an_installed_arena_needs_no_file(temporary: Path) -> None:
    assert TravellingArena.of("nim").here() == "nim"
    assert not list(temporary.iterdir())


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match=r"arena file .*away\.py cannot be read"):
        TravellingArena.of(f"{tmp_path}/away.py:Mine")
