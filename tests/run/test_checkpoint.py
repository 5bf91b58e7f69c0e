"""Checkpoints: which are kept, which count as whole, and what is said of the others."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from legos.errors import CheckpointError
from legos.run import checkpoint
from legos.run.checkpoint import (
    STATE,
    checkpoint_at,
    checkpoints,
    newest_whole,
    read_state,
    write_checkpoint,
)


def write(parent: Path, step: int, *, keep: int = 3, also: tuple[int, ...] = ()) -> Path:
    def fill(folder: Path) -> dict[str, Any]:
        (folder / "arrays").write_bytes(bytes([step % 256]) * 100)
        return {"step": step, "value": 0.1}

    return write_checkpoint(parent, step, fill, keep=keep, also=also)


def steps(parent: Path) -> list[int]:
    return [read_state(place)["step"] for place in checkpoints(parent)]


def test_the_newest_are_kept_and_read_back(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, step, keep=2)
    assert steps(tmp_path) == [4, 5]
    assert read_state(newest_whole(tmp_path)) == {"step": 5, "value": 0.1}


def test_named_ones_stay_beside_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, step, keep=2, also=(2, 99))
    assert steps(tmp_path) == [2, 4, 5]
    write(tmp_path, 3, keep=1, also=(5,))  # a course given up takes its best along
    assert steps(tmp_path) == [3]


def test_one_step_is_found_whole_or_refused_by_name(tmp_path: Path) -> None:
    parent = tmp_path / "checkpoints"
    for step in (4, 10):
        write(parent, step)
    assert checkpoint_at(parent, 4).name == "step-000004"
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 5; it has 4, 10 \("):
        checkpoint_at(parent, 5)
    (parent / "step-000010" / "arrays").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"step-000010 is damaged .*; take another step"):
        checkpoint_at(parent, 10)
    with pytest.raises(CheckpointError, match="it has none at all"):
        checkpoint_at(tmp_path / "nowhere" / "checkpoints", 1)


def test_order_is_by_number_beyond_six_digits(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        write(tmp_path, step, keep=2)
    assert steps(tmp_path) == [1_000_000, 1_000_001]
    assert read_state(newest_whole(tmp_path))["step"] == 1_000_001


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 5)
    (tmp_path / "step-000005" / "arrays").write_bytes(b"damaged")
    write(tmp_path, 5)
    assert newest_whole(tmp_path).name == "step-000005"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]


def test_later_steps_of_a_course_given_up_do_not_push_out_the_new_one(tmp_path: Path) -> None:
    write(tmp_path, 5)
    write(tmp_path, 10)
    (tmp_path / "step-000010" / "arrays").unlink()
    write(tmp_path, 7, keep=1)
    assert steps(tmp_path) == [7]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("arrays", b"\x0a" * 99, "arrays does not match its digest"),
        ("arrays", None, "No such file"),
        ("state.json", b"{", "state.json does not match its digest"),
        ("manifest.json", b"{}", "manifest.json lists no state.json"),
        ("manifest.json", b"[]", "manifest.json lists no state.json"),
        ("manifest.json", b'{"state', "Unterminated string"),
        ("manifest.json", None, "No such file"),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_taken(
    file: str,
    content: bytes | None,
    problem: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = write(tmp_path, 5)
    damaged = write(tmp_path, 10) / file
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert newest_whole(tmp_path) == whole
    [message] = caplog.messages
    assert f"checkpoint {damaged.parent} is damaged (" in message
    assert problem in message
    assert message.endswith("going back to the one before")


def test_who_reads_the_state_alone_does_not_look_at_the_arrays(tmp_path: Path) -> None:
    place = write(tmp_path, 5)
    (place / "arrays").write_bytes(b"damaged")
    assert newest_whole(tmp_path, only=STATE) == place
    (place / STATE).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        newest_whole(tmp_path, only=STATE)


def test_a_run_may_replace_its_only_checkpoint_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 5)
    digest = checkpoint._digest

    def late(path: Path) -> str:
        monkeypatch.setattr(checkpoint, "_digest", digest)
        write(tmp_path, 10, keep=1)
        return digest(path)

    monkeypatch.setattr(checkpoint, "_digest", late)
    assert newest_whole(tmp_path).name == "step-000010"
    assert not caplog.messages


def test_without_a_whole_one_there_is_a_way_out(tmp_path: Path) -> None:
    for parent in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="holds no whole checkpoint; start a new run"):
            newest_whole(parent)
    (write(tmp_path, 5) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        newest_whole(tmp_path)


def test_what_is_being_written_is_no_checkpoint_and_stays(tmp_path: Path) -> None:
    place = write(tmp_path, 5)
    half = tmp_path / ".step-000006.unfinished"
    half.mkdir()
    (tmp_path / "step-notes").mkdir()
    assert newest_whole(tmp_path) == place
    assert half.exists()  # a process may be writing it


def test_a_failed_write_leaves_the_others(tmp_path: Path) -> None:
    write(tmp_path, 5)

    def fail(folder: Path) -> dict[str, Any]:
        (folder / "arrays").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="step-000006 cannot be written"):
        write_checkpoint(tmp_path, 6, fail, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]


def test_numbers_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [0.1, 1e-300, 2**63 - 1, -0.0, 1 / 3]
    write_checkpoint(tmp_path, 1, lambda _: {"values": values}, keep=1)
    assert json.dumps(read_state(newest_whole(tmp_path))["values"]) == json.dumps(values)
