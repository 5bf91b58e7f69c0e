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


def test_processes_with_the_same_arena_share_one_file(tmp_path: Path, temporary: Path) -> None:
    written = tmp_path / "mine.py"
    written.write_text("A = 1\n")
    first = TravellingArena.of(f"{written}:Mine")
    place, _, name = first.here().rpartition(":")
    assert (Path(place).read_text(), Path(place).name, name) == ("A = 1\n", "mine.py", "Mine")
    assert first.here() == f"{place}:Mine"
    written.write_text("A = 2\n")
    assert TravellingArena.of(f"{written}:Mine").here() != first.here()
    assert Path(place).read_text() == "A = 1\n"
    assert len(list(temporary.rglob("*.py"))) == 3  # with the first one itself


def test_an_installed_arena_needs_no_file(temporary: Path) -> None:
    assert TravellingArena.of("nim").here() == "nim"
    assert not list(temporary.iterdir())


def test_a_folder_that_others_can_change_is_refused(tmp_path: Path, temporary: Path) -> None:
    written = tmp_path / "mine.py"
    written.write_text("A = 1\n")
    arena = TravellingArena.of(f"{written}:Mine")
    folder = Path(arena.here().rpartition(":")[0]).parents[1]
    assert folder.parent == temporary
    folder.chmod(0o777)
    with pytest.raises(ArenaError, match="can be changed by other users; remove it"):
        arena.here()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match=r"arena file .*away\.py cannot be read"):
        TravellingArena.of(f"{tmp_path}/away.py:Mine")
