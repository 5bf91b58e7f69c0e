"""Full files of plays: renamed, compressed, removed, taken back; and readers meanwhile."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_records import make_episode
from msgspec.structs import replace

from legos.errors import CheckpointError
from legos.files.lines import NewLines
from legos.run.episodes import parse_episode
from legos.run.folder import RunFolder
from legos.run.play_files import NewPlays, OldPlays, PlayFiles
from legos.run.reader import RunReader

SIZE = 3_000  # of a full file: about six plays


def add(folder: RunFolder, *steps: int, evaluation: bool = False) -> None:
    for step in steps:
        play = replace(make_episode({"player": float(step)}), notes=("x" * 80,))
        folder.add_episodes(step, [play] * 2, evaluation=evaluation, full_at=SIZE)


def steps_of(folder: RunFolder) -> list[object]:
    return [parse_episode(line).step for _, line in NewPlays(folder.episodes).read()]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_plays_keep_their_numbers_in_older_files(folder: RunFolder) -> None:
    add(folder, *range(1, 13))
    names = [old.path.name for old in folder.plays.older()]
    assert len(names) >= 3
    assert names[0].startswith("1-")
    folder.plays.pack(10**9)
    packed = [old.path for old in folder.plays.older()]
    assert [path.name for path in packed] == [f"{name}.gz" for name in names]
    first = json.loads(gzip.decompress(packed[0].read_bytes()).splitlines()[0])
    assert first["step"] == 1
    expected = [step for step in range(1, 13) for _ in range(2)]
    assert steps_of(folder) == expected
    tail = NewPlays(folder.episodes)
    assert [number for number, _ in tail.read(last=5)] == [20, 21, 22, 23, 24]
    for number in (1, 7, 24, -1, -24):
        play = RunReader(folder).episode(number)
        assert play.number == number % 25
        assert play.step == expected[number % 25 - 1]
    for number in (0, 25, -25):
        with pytest.raises(CheckpointError, match=r"has no play .*; it has 1 to 24 \(-1 is the"):
            RunReader(folder).episode(number)


def test_a_play_is_read_from_its_own_file_alone(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(folder, *range(1, 13))
    reads: list[Path] = []
    read, data = NewLines.read, OldPlays.data

    def live(self: NewLines) -> list[tuple[int, bytes]]:
        reads.append(folder.plays.live)
        return read(self)

    def older(self: OldPlays) -> bytes:
        reads.append(self.path)
        return data(self)

    monkeypatch.setattr(NewLines, "read", live)
    monkeypatch.setattr(OldPlays, "data", older)
    assert folder.episode(1).step == 1
    assert reads == [folder.plays.older()[0].path]


def test_the_oldest_go_first_and_the_newest_stays(folder: RunFolder) -> None:
    add(folder, *range(1, 13))
    folder.plays.pack(0)
    [newest] = folder.plays.older()
    assert steps_of(folder)[0] == (newest.first + 1) // 2
    assert folder.plays.last() == 24
    with pytest.raises(CheckpointError, match=rf"no play 1; it has {newest.first} to 24"):
        RunReader(folder).episode(1)


@pytest.mark.parametrize("number", [-1, 2, 8])
def test_a_play_is_found_though_a_file_gets_full_meanwhile(
    number: int, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(folder, 1, 2)
    first = PlayFiles.first

    def meanwhile(self: PlayFiles) -> int:
        found = first(self)
        monkeypatch.setattr(PlayFiles, "first", first)
        add(folder, 3, 4, 5)
        assert folder.plays.first() > 5
        return found

    monkeypatch.setattr(PlayFiles, "first", meanwhile)
    [(found, line)] = folder.plays.lines([folder.plays.last() if number < 0 else number])
    assert found == (10 if number < 0 else number)
    assert parse_episode(line).step == (found + 1) // 2


def test_an_old_file_that_cannot_be_removed_is_named(folder: RunFolder) -> None:
    add(folder, *range(1, 13))
    oldest, *_ = folder.plays.older()
    data = oldest.data()
    oldest.path.unlink()
    packed = oldest.path.with_name(f"{oldest.path.name}.gz")
    packed.mkdir()
    with pytest.raises(CheckpointError, match=r"episodes cannot be written: .*1-"):
        folder.plays.pack(0)
    packed.rmdir()
    oldest.path.write_bytes(data)
    folder.plays.pack(0)
    assert len(folder.plays.older()) == 1


def test_a_tail_misses_no_play_and_repeats_none_while_files_get_full(folder: RunFolder) -> None:
    tail, seen = NewPlays(folder.episodes), list[int]()
    for step in range(1, 25):
        add(folder, step)
        if step % 5 == 0:
            folder.plays.pack(10**9)
        if step % 3 == 0:
            seen += [number for number, _ in tail.read()]
    assert seen == list(range(1, 49))
    assert [number for number, _ in NewPlays(folder.episodes, seen=40).read()] == [*range(41, 49)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("step", [0, 1, 5, 9, 12, 20])
def test_a_resumed_run_removes_later_plays_from_older_files_too(
    folder: RunFolder, step: int, packed: bool
) -> None:
    add(folder, *range(1, 13))
    add(folder, 3, evaluation=True)
    if packed:
        folder.plays.pack(10**9)
    tail = NewPlays(folder.episodes)
    tail.read()
    folder.plays.rewind(step, evaluated=0 if step < 12 else 3)
    left = [s for s in range(1, min(step, 12) + 1) for _ in range(2)]
    left += [3, 3] if step >= 12 else []
    assert steps_of(folder) == left
    assert tail.read() == []
    assert tail.rewritten is (step < 12)
    add(folder, 50)
    assert [number for number, _ in tail.read()] == [len(left) + 1, len(left) + 2]
    assert steps_of(folder) == [*left, 50, 50]


def crashing(method: str, number: int) -> Callable[..., object]:
    """A method of paths whose call of this number fails, as if the process had been killed."""
    real, calls = getattr(Path, method), itertools.count()

    def crash(path: Path, *given: object, **options: object) -> object:
        if path.suffix != ".unfinished" and next(calls) == number:
            raise KeyboardInterrupt
        return real(path, *given, **options)

    return crash


@pytest.mark.parametrize(
    ("method", "number"), [*(("unlink", n) for n in range(6)), *(("replace", n) for n in range(2))]
)
def test_a_crash_at_any_time_loses_no_play(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, method: str, number: int
) -> None:
    add(folder, *range(1, 13))
    expected = steps_of(folder)

    def pack_and_rewind() -> None:
        folder.plays.pack(10**9)
        assert steps_of(folder) == expected
        folder.plays.rewind(7, evaluated=0)

    with monkeypatch.context() as patched:
        patched.setattr(Path, method, crashing(method, number))
        with pytest.raises(KeyboardInterrupt):
            pack_and_rewind()
    found = steps_of(folder)
    assert found == expected[: max(14, len(found))]
    folder.plays.rewind(7, evaluated=0)
    add(folder, *range(8, 13))
    folder.plays.pack(10**9)
    assert steps_of(folder) == expected


def test_a_damaged_file_is_named_with_the_plays_that_are_lost(folder: RunFolder) -> None:
    add(folder, *range(1, 13))
    folder.plays.pack(10**9)
    first, second, *_ = folder.plays.older()
    first.path.write_bytes(first.path.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match=rf"{first.path.name} cannot be read: .*plays 1 to"):
        NewPlays(folder.episodes).read()
    assert RunReader(folder).episode(second.first).number == second.first
    assert PlayFiles(folder.episodes).last() == 24


def test_a_play_whose_line_a_power_failure_took_is_not_there(folder: RunFolder) -> None:
    add(folder, *range(1, 13))
    first, second, *_ = folder.plays.older()
    first.path.write_bytes(first.data()[: first.data().index(b"\n") + 1])
    with pytest.raises(CheckpointError, match=r"has no play 2; it has 1 to 24"):
        RunReader(folder).episode(2)
    found = folder.plays.lines(range(1, 25))
    assert [number for number, _ in found] == [1, *range(second.first, 25)]
