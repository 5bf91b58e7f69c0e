"""Arenas by name, by file and by module, and what is said when there is none."""

import sys
from pathlib import Path

import pytest

from legos.arena.arena import Arena
from legos.arena.game import Game
from legos.arena.registry import find_arena, known_arenas
from legos.errors import ArenaError

TWO_ARENAS = """
from legos import GameArena
from legos.arena.arena import Arena

class Duel(Arena):
    "Two answers, one judge."

class Debate(Arena):
    "Two sides."

class Judge:
    "No arena."
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(TWO_ARENAS)
    return path


def test_installed_arenas_are_known_by_name() -> None:
    known = known_arenas()
    assert {"kuhn", "nim"} <= set(known)
    assert list(known) == sorted(known)
    for name, arena in known.items():
        assert issubclass(arena, Arena | Game)
        assert find_arena(name) is arena


def test_a_module_and_its_class() -> None:
    assert find_arena("arenas.nim:Nim") is known_arenas()["nim"]


def test_a_file_and_its_class_is_the_same_each_time(file: Path) -> None:
    duel = find_arena(f"{file}:Duel")
    assert issubclass(duel, Arena)
    assert duel.__name__ == "Duel"
    assert find_arena(f"{file}:Duel") is duel


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ArenaError, match=r"no arena is called 'nmi'; did you mean 'nim'\?"):
        find_arena("nmi")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}", r"names a file; add its class as .*mine\.py:Class \(it has Duel, Debate\)"),
        ("{file}:Duell", r"mine\.py has no class 'Duell'; did you mean 'Duel'\?"),
        ("{file}:Judge", r"'Judge' in .*mine\.py is not a subclass of Arena or Game"),
        ("{file}:Arena", r"'Arena' in .*mine\.py is not a subclass"),
        ("{file}:GameArena", r"'GameArena' in .*mine\.py is not a subclass"),
        ("{folder}/none.py:Duel", r"there is no file .*none\.py"),
        ("{folder}/broken.py:Duel", r"cannot import .*broken\.py: ZeroDivisionError: division"),
        (
            "{folder}/wrong.py:Duel",
            r"cannot import .*/wrong\.py: SyntaxError: .* \(wrong\.py, line 2\)",
        ),
        (
            "{folder}/leaves.py:Duel",
            r"cannot import .*/leaves\.py: it ends the process \(sys\.exit\(3\)\)",
        ),
        (
            "leaving_module:Duel",
            r"cannot import leaving_module: it ends the process \(sys\.exit\(\)\)",
        ),
        ("no_such_module:Duel", r"cannot import no_such_module: ModuleNotFoundError"),
        ("legos.errors:Duel", r"legos\.errors has no class 'Duel'; it defines no arena"),
    ],
)
def test_what_cannot_be_found_is_named(
    file: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    (file.parent / "broken.py").write_text("1 / 0\n")
    (file.parent / "wrong.py").write_text("class Duel:\n    def play(self) return 1\n")
    (file.parent / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (file.parent / "leaving_module.py").write_text("raise SystemExit\n")
    with pytest.raises(ArenaError, match=message) as refused:
        find_arena(name.format(file=file, folder=file.parent))
    assert "\n" not in str(refused.value)


def test_a_file_imports_those_beside_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "words_of_mine", raising=False)
    (file.parent / "words_of_mine.py").write_text("NAME = 'a neighbour'\n")
    file.write_text(f"from words_of_mine import NAME\n{TWO_ARENAS}")
    assert vars(sys.modules[find_arena(f"{file}:Duel").__module__])["NAME"] == "a neighbour"
    file.with_name("other.py").write_text("from .words_of_mine import NAME\n")
    with pytest.raises(ArenaError, match=r"no relative imports; name its module, such as folder"):
        find_arena(f"{file.with_name('other.py')}:Duel")


def test_a_broken_file_can_be_mended_and_found(file: Path) -> None:
    path = file.parent / "mended.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ArenaError, match="division by zero"):
        find_arena(f"{path}:Duel")
    path.write_text(TWO_ARENAS + "\n")
    assert find_arena(f"{path}:Duel").__name__ == "Duel"
