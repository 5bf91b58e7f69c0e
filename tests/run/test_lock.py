"""The lock on a run folder: one process at a time, released by whatever ends it."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from legos.errors import CheckpointError
from legos.run.lock import check_unheld, check_unmoved, hold

HOLD = """
import sys, time
from pathlib import Path
from legos.run.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""

FORK = """
    import os
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # by the worker: its hooks of the fork have run
        time.sleep(60)
        os._exit(0)
"""


@contextmanager
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_folder_is_made_and_nothing_is_left(tmp_path: Path) -> None:
    run = tmp_path / "deep" / "run"
    with hold(run) as left_behind:
        assert not left_behind
        assert run.is_dir()
    assert list(run.iterdir()) == []


def test_a_page_that_looks_at_the_lock_does_not_keep_a_run_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("process 1")  # of a run that was killed
    looking = (tmp_path / ".lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    Timer(0.05, looking.close).start()
    with hold(tmp_path) as left_behind:
        assert left_behind


def test_a_second_process_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        for refused in (lambda: hold(tmp_path).__enter__(), lambda: check_unheld(tmp_path)):
            with pytest.raises(CheckpointError, match="is in use") as caught:
                refused()
            named = f"process {process.pid} on {socket.gethostname()} has trained in it since 20"
            assert named in str(caught.value)
            assert f"go on with --resume {tmp_path}" in str(caught.value)
            assert "another --out" in str(caught.value)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert check_unheld(tmp_path)
        with hold(tmp_path) as left_behind:
            assert left_behind
    assert not check_unheld(tmp_path)


def test_the_lock_of_a_folder_that_was_replaced_is_not_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with hold(run):
        run.rename(tmp_path / "away")
        inner = hold(run)
        inner.__enter__()
    assert (run / ".lock").exists()
    inner.__exit__(None, None, None)
    assert not (run / ".lock").exists()


def test_only_one_of_many_passes(tmp_path: Path) -> None:
    code = HOLD.replace("time.sleep(60)", "sys.stdin.read()")
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    several = [
        subprocess.Popen(
            command,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    lost = 0
    while lost < 3:  # the fourth waits for its input to end
        for process in several:
            if process.poll() not in (None, 0):
                lost += 1
                assert "CheckpointError" in process.communicate()[1]
                several.remove(process)
                break
    [winner] = several
    assert winner.poll() is None
    assert winner.communicate("")[0] == "held\n"
    assert list((tmp_path / "run").iterdir()) == []


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CheckpointError, match=r"\.lock cannot be written: .*--out"), hold(tmp_path):
        pytest.fail("it was held")


def test_a_process_that_was_forked_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker of a data loader may outlive the killed run by minutes."""
    code = HOLD.replace('    print("held", flush=True)', FORK)
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            with pytest.raises(CheckpointError, match="is in use"):
                check_unheld(tmp_path)
            process.kill()
            process.wait()
            os.kill(worker, 0)  # it lives
            with hold(tmp_path) as left_behind:
                assert left_behind
        finally:
            os.kill(worker, signal.SIGKILL)
            process.kill()


def test_a_folder_that_is_moved_or_removed_meanwhile_is_said(tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    check_unmoved(run)
    with hold(run):
        check_unmoved(run)
        run.rename(moved)
        with pytest.raises(CheckpointError, match="run was moved or removed while"):
            check_unmoved(run)
        moved.rename(run)
        check_unmoved(run)
        shutil.rmtree(run)
        with pytest.raises(CheckpointError, match="run was moved or removed while"):
            check_unmoved(run)
    check_unmoved(run)
