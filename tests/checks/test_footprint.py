"""The memory of the process, as Linux and macOS tell it."""

import mmap
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legos.checks import footprint
from legos.checks.footprint import footprint_mib


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_held_memory_is_counted() -> None:
    before = footprint_mib()
    with mmap.mmap(-1, 64 << 20) as held:  # new pages; the allocator may have that much left over
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        assert footprint_mib() - before == pytest.approx(64, abs=16)


@pytest.mark.parametrize(("failed", "found_mib"), [(0, 7.0), (1, 0.0)])
def test_macos_counts_what_the_gpu_uses_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: int, found_mib: float
) -> None:
    def fill(pid: int, flavour: int, buffer: Any) -> int:
        assert (pid > 0, flavour, len(buffer)) == (True, 0, 96)
        buffer[:96] = struct.pack("<16s10Q", b"", 0, 0, 0, 0, 0, 0, 3 << 20, 7 << 20, 0, 0)
        return failed

    monkeypatch.setattr(footprint, "_STATM", tmp_path / "absent")
    library = SimpleNamespace(proc_pid_rusage=fill)
    monkeypatch.setattr(footprint.ctypes, "CDLL", lambda _: library)
    assert footprint_mib() == found_mib
    monkeypatch.setattr(footprint.ctypes, "CDLL", lambda _: SimpleNamespace())
    assert footprint_mib() == 0.0
