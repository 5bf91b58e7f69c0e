"""JSON lines of a run: cut where it goes on, freed of damage, and gaps reported."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.errors import CheckpointError
from legos.files.lines import NewLines, has_step_lines, rewind_lines


def line(step: int) -> bytes:
    return json.dumps({"step": step, "loss": step / 7}).encode() + b"\n"


@given(
    parts=st.lists(st.integers(1, 9) | st.sampled_from([b"{\n", b"[1]\n", b"\0\0\n", b'"\xff"\n'])),
    end=st.sampled_from([b"", b'{"step": 3, "lo', b"\0\0\0"]),
)
def test_good_lines_up_to_the_step_stay(
    parts: list[int | bytes], end: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    content = b"".join(line(part) if isinstance(part, int) else part for part in parts) + end
    path.write_bytes(content)
    good = [part for part in parts if isinstance(part, int)]
    known = rewind_lines(path, 5)
    assert path.read_bytes() == b"".join(line(step) for step in good if step <= 5)
    assert known == {*good}
    others = [other for other in path.parent.iterdir() if other != path]
    assert [other.read_bytes() for other in others] == [content] * (len(good) < len(parts))


def test_a_damaged_file_is_kept_aside_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "episodes.jsonl"
    for number in (1, 2):
        path.write_bytes(line(1) + b"nonsense\n" + b"[" * 99_999 + b"\n" + line(2) + line(3))
        rewind_lines(path, 2)
        assert path.read_bytes() == line(1) + line(2)
        assert "episodes.jsonl: line 2, 3 is no JSON object" in caplog.messages[-1]
        assert f"kept as episodes.damaged-{number}.jsonl" in caplog.messages[-1]
        assert (tmp_path / f"episodes.damaged-{number}.jsonl").read_bytes().endswith(line(3))


def test_a_last_line_without_its_line_break_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + line(2)[:-1])
    assert rewind_lines(path, 2) == {1, 2}
    assert path.read_bytes() == line(1) + line(2)


def test_figures_that_came_late_stay_up_to_the_newest_evaluation(tmp_path: Path) -> None:
    def figures(step: int) -> bytes:
        return json.dumps({"step": step, "eval/win": 0.5}).encode() + b"\n"

    path = tmp_path / "metrics.jsonl"
    lines = [figures(0), line(1), line(2), figures(1), line(3), figures(2), line(4), figures(3)]
    path.write_bytes(b"".join(lines))
    assert has_step_lines(path)
    assert rewind_lines(path, 3, evaluated=1) == {1, 2, 3, 4}
    assert path.read_bytes() == b"".join([*lines[:5]])
    path.write_bytes(figures(0))
    assert not has_step_lines(path)
    path.write_bytes(figures(0) + b'{"step": 1, "lo')
    assert has_step_lines(path)


def test_an_absent_file_has_no_lines(tmp_path: Path) -> None:
    assert rewind_lines(tmp_path / "metrics.jsonl", 5) == set()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b"nonsense\n" + line(2))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be written: .*free some"):
        rewind_lines(path, 2)
    assert path.read_bytes() == line(1) + b"nonsense\n" + line(2)


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "episodes.jsonl"
    lines = NewLines(path)
    assert lines.read() == []
    path.write_bytes(b"a\nb\xe2\x80\xa8b\r\nhal")  # one line has U+2028, which breaks none
    assert lines.read() == [(1, b"a"), (2, b"b\xe2\x80\xa8b\r")]
    sizes: list[int] = []
    take = NewLines._take
    monkeypatch.setattr(NewLines, "_take", lambda s, data: sizes.append(len(data)) or take(s, data))
    with path.open("ab") as file:
        file.write(b"f\nc\n")
    assert lines.read() == [(3, b"half"), (4, b"c")]
    assert sizes == [len(b"half\nc\n")]


def test_lines_that_a_resumed_run_removed_are_counted_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"a\nb\nc\n")
    lines = NewLines(path)
    assert len(lines.read()) == 3
    path.write_bytes(b"a\n")
    assert lines.read() == []
    path.write_bytes(b"a\nB\n")
    assert lines.read() == [(2, b"B")]
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot read .*episodes\.jsonl: Is a directory"):
        lines.read()
