"""metrics.jsonl: whole lines only, whatever happens."""

import json
import multiprocessing
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
from metric_lines import read_metrics, read_steps

from legos.errors import CheckpointError
from legos.track.jsonl import JsonlTracker


def steps(path: Path) -> list[object]:
    return [line["step"] for line in read_metrics(path)]


def test_one_object_per_step_readable_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log({"loss": 0.5, "samples_per_step": 16, "exploitability": None}, step=1)
    first = {"step": 1, "loss": 0.5, "samples_per_step": 16, "exploitability": None}
    [line, end] = path.read_text().split("\n")
    assert (json.loads(line), end) == (first, "")
    tracker.log({"loss": float("nan"), "kl_divergence": float("inf")}, step=2)
    tracker.close()
    tracker.close()
    assert read_metrics(path) == [first, {"step": 2, "loss": None, "kl_divergence": None}]


def test_the_piece_of_a_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    assert steps(path) == [1, 2]
    tracker = JsonlTracker(path)
    tracker.log({}, step=3)
    tracker.close()
    assert steps(path) == [1, 2, 3]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot open .*No such file"):
        JsonlTracker(tmp_path / "nowhere" / "metrics.jsonl")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the file size as Linux does")
def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "metrics.jsonl"
    line = len(b'{"step":1,"loss":0.5}\n')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    tracker = JsonlTracker(path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * line + 10, before[1]))
        tracker.log({"loss": 0.5}, step=1)
        tracker.log({"loss": 0.5}, step=2)
        with pytest.raises(CheckpointError, match=r"cannot write .*metrics\.jsonl"):
            tracker.log({"loss": 0.5}, step=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.stat().st_size == 2 * line
    tracker.log({"loss": 0.5}, step=3)
    tracker.close()
    assert steps(path) == [1, 2, 3]


def write_for_ever(path: Path) -> None:
    tracker = JsonlTracker(path)
    step = 0
    while True:
        step += 1
        tracker.log({f"name_{i}": step / 7 for i in range(300)}, step=step)


def test_killed_while_writing_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = multiprocessing.get_context("spawn").Process(target=write_for_ever, args=(path,))
    writer.start()
    while not path.exists() or path.stat().st_size < 1_000_000:
        assert writer.is_alive()
        os.sched_yield()
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    JsonlTracker(path).close()  # cuts the line whose write the kernel may have interrupted
    assert path.read_bytes().endswith(b"\n")
    seen = steps(path)
    assert seen == list(range(1, len(seen) + 1))


def test_figures_of_an_evaluation_alone_are_no_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with closing(JsonlTracker(path)) as tracker:
        tracker.log({"eval/win": 0.5}, step=0)
        tracker.log({"loss": 1.0}, step=1)
        tracker.log({"loss": 0.5, "eval/win": 0.75}, step=2)
        tracker.log({"eval/win": 0.25}, step=1)
    assert steps(path) == [0, 1, 2, 1]
    assert [line["step"] for line in read_steps(path)] == [1, 2]
