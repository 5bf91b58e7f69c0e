"""The BLAS that MLX computes with on Linux: found where it is installed, else hinted at."""

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import pytest

from legos import machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have their own")

LOCAL = """
import ctypes, sys
from legos import machine
ctypes.CDLL(sys.argv[1])  # as a package of Python does, for itself alone
before = machine.blas()
machine.load_blas()
print(before, machine.blas())
"""
FOUND = "import legos.mlx; from legos.machine import blas; print(blas())"


def installed() -> bool:
    try:
        ctypes.CDLL(machine.BLAS["OpenBLAS"][-1])
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="OpenBLAS is not installed")
def test_an_installed_blas_is_loaded_without_an_environment_variable() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    told = subprocess.check_output([sys.executable, "-c", FOUND], env=environment, text=True)
    assert told.strip() == "OpenBLAS"


@pytest.mark.skipif(not installed(), reason="OpenBLAS is not installed")
def test_a_blas_that_another_library_keeps_to_itself_is_none_for_mlx() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    line = [sys.executable, "-c", LOCAL, machine.BLAS["OpenBLAS"][-1]]
    told = subprocess.check_output(line, env=environment, text=True)
    assert told.split() == ["None", "OpenBLAS"]


def test_the_first_library_that_is_there_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []

    def load(file: str, mode: int) -> None:
        tried.append((file, mode))
        if "openblas" in file:
            raise OSError(f"{file}: cannot open shared object file")

    monkeypatch.setattr(machine, "blas", lambda: None)
    monkeypatch.setattr("ctypes.CDLL", load)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    machine.load_blas()
    files = (*machine.BLAS["OpenBLAS"], *machine.BLAS["MKL"])
    assert tried == [(file, ctypes.RTLD_GLOBAL) for file in files]
    monkeypatch.setattr(machine, "blas", lambda: "MKL")
    machine.load_blas()
    assert len(tried) == len(files)


def test_nothing_is_loaded_after_mlx_and_the_hint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded then, a library is there and MLX computes without it."""
    tried: list[object] = []
    monkeypatch.setattr(machine, "blas", lambda: None)
    monkeypatch.setattr("ctypes.CDLL", tried.append)
    monkeypatch.setitem(sys.modules, "mlx.core", sys)
    machine.load_blas()
    assert not tried
    hint = machine.blas_hint()
    assert hint is not None
    assert "`import legos.mlx` first" in hint


def test_a_missing_library_is_hinted_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "blas", lambda: None)
    hint = machine.blas_hint()
    assert hint is not None
    assert "apt install libopenblas0, or dnf install openblas-threads" in hint
    monkeypatch.setattr(machine, "blas", lambda: "BLIS")
    assert machine.blas_hint() is None


def test_cores_are_shared_only_among_parts_that_compute_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[int, str]] = []

    def limit(*, limits: int, user_api: str) -> None:
        given.append((limits, user_api))

    monkeypatch.setattr(machine, "threadpool_limits", limit)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [machine.share_cores(parts) for parts in (1, 2)] == [8, 4]
    assert given == [(4, "blas")]


def test_what_an_earlier_run_left_is_freed_by_the_next_one() -> None:
    kept: Any = type("Kept", (), {})()
    kept.own = kept  # a cycle, which the collector alone frees
    left, before = weakref.ref(kept), gc.get_threshold()
    try:
        machine.quiet_collector()
        del kept
        gc.collect()
        assert left() is not None
        machine.quiet_collector()
        assert left() is None
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
