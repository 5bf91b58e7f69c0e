"""Files and folders that are whole or absent."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from legos.errors import CheckpointError, EngineError
from legos.files import atomic
from legos.files.atomic import clear_unfinished, write_file, write_folder


class Fill:
    """Writes one file, and then fails if it is told how."""

    def __init__(self, text: str, error: BaseException | None = None) -> None:
        self.text = text
        self.error = error

    def __call__(self, folder: Path) -> None:
        (folder / "a").write_text(self.text)
        if self.error is not None:
            raise self.error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_made_and_replaced(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "place"
    write_folder(place, Fill("first"))
    write_folder(place, Fill("second"))
    assert (place / "a").read_text() == "second"
    assert names(place.parent) == ["place"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FULL, CheckpointError),
        (RuntimeError("[write] Unable to write 9 bytes to file."), CheckpointError),
        (EngineError("the engine was closed"), EngineError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failure_leaves_what_stood_there(
    error: BaseException, raised: type[BaseException], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    with pytest.raises(raised):
        write_folder(place, Fill("never", error))
    assert names(tmp_path) == []
    write_folder(place, Fill("first"))
    with pytest.raises(raised):
        write_folder(place, Fill("never", error))
    assert names(tmp_path) == ["place"]
    assert (place / "a").read_text() == "first"


def test_a_full_disk_is_named_with_the_place_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"v3 cannot be written: .*No space left") as caught:
        write_folder(tmp_path / "v3", Fill("x", FULL))
    assert "free some space or choose another --out" in str(caught.value)


def test_errors_of_the_array_libraries_are_refusals_of_the_disk(tmp_path: Path) -> None:
    def into_nowhere(folder: Path) -> None:
        save_file({"a": np.zeros(3, np.float32)}, folder / "missing" / "a.safetensors")

    with pytest.raises(CheckpointError, match="cannot be written"):
        write_folder(tmp_path / "place", into_nowhere)
    assert names(tmp_path) == []


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    write_file(path, "first")
    write_file(path, "second")
    assert path.read_text() == "second"

    def refuse(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:2])
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(CheckpointError, match="No space left"):
        write_file(path, "third")
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["config.toml"]


def test_a_crash_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / ".step-000005.replaced", Fill("five"))
    write_folder(tmp_path / ".step-000004.replaced", Fill("old four"))
    write_folder(tmp_path / "step-000004", Fill("four"))
    write_folder(tmp_path / ".step-000006.12-ab.unfinished", Fill("half"))
    clear_unfinished(tmp_path)
    assert names(tmp_path) == ["step-000004", "step-000005"]
    assert (tmp_path / "step-000004" / "a").read_text() == "four"
    assert (tmp_path / "step-000005" / "a").read_text() == "five"


def test_what_a_crash_has_left_does_not_stop_the_next_writer(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", Fill("one"))
    write_folder(tmp_path / ".out.replaced", Fill("zero"))  # nobody has called clear_unfinished
    write_folder(tmp_path / "out", Fill("two"))
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "two"


def test_a_link_to_a_folder_is_replaced_again_and_again(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere", Fill("zero"))
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    for text in ("one", "two"):
        write_folder(tmp_path / "out", Fill(text))
        assert names(tmp_path) == ["elsewhere", "out"]
    assert (tmp_path / "out" / "a").read_text() == "two"


def test_two_writers_of_one_place_do_not_disturb_each_other(tmp_path: Path) -> None:
    place = tmp_path / "config.toml"

    def write(folder: Path) -> None:
        (folder / "a").write_text("outer")
        write_folder(tmp_path / "place", Fill("inner"))
        assert (folder / "a").read_text() == "outer"

    write_folder(tmp_path / "place", write)
    assert (tmp_path / "place" / "a").read_text() == "outer"
    assert names(tmp_path) == ["place"]
    write_file(place, "text")
    assert names(tmp_path) == ["config.toml", "place"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EROFS, "let this user write there"), (errno.ENOSPC, "free some space")],
)
def test_the_advice_is_that_of_the_refusal(number: int, advice: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=advice):
        write_folder(tmp_path / "v3", Fill("x", OSError(number, os.strerror(number))))


@pytest.mark.parametrize("answer", [None, errno.ENOTSUP])
def test_macos_flushes_the_drive_and_volumes_that_cannot_are_written_too(
    answer: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def full(descriptor: int, command: int) -> None:
        assert command == 51
        calls.append("full")
        if answer is not None:
            raise OSError(answer, "of a network volume")

    def fsync(descriptor: int) -> None:
        calls.append("fsync")
        raise OSError(errno.EINVAL, "of a network volume")

    monkeypatch.setattr(atomic, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=full))
    monkeypatch.setattr(os, "fsync", fsync)
    write_file(tmp_path / "state.json", "{}")
    assert (tmp_path / "state.json").read_text() == "{}"
    assert calls == 2 * (["full"] if answer is None else ["full", "fsync"])  # the file, its folder


def test_a_flush_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(atomic, "fcntl", SimpleNamespace())
    with pytest.raises(CheckpointError, match="input/output error"):
        write_file(tmp_path / "state.json", "{}")
