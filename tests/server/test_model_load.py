"""A model that cannot be loaded: too large for the memory, or a load that never ends."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import write_tiny_model

WIDE = 10_000_000  # of the middle of an MLP: 7 GiB of weights, none of them on disk


def serve(folder: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "legos", "serve", "--port", "0", "--model", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def widen(folder: Path) -> None:
    """Give a model large weights, in a file that is a hole."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    config = json.loads((folder / "config.json").read_text())
    narrow, offset = config["intermediate_size"], 0
    for name, entry in header.items():
        if name != "__metadata__":
            if ".mlp." in name:
                entry["shape"] = [WIDE if size == narrow else size for size in entry["shape"]]
            size = 4 * entry["shape"][0] * (entry["shape"] + [1])[1]
            entry["data_offsets"] = [offset, offset + size]
            offset += size
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": WIDE}))
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + offset)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_weights_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    widen(write_tiny_model(tmp_path / "model"))
    limit = (6 * 2**30, resource.RLIM_INFINITY)
    process = serve(
        tmp_path / "model", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit)
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "has 7.2 GiB of weights but " in errors
    assert "in 4 bits or a smaller model" in errors


_STUCK = """
import atexit, sys, threading
from legos.cli import process
atexit.register(threading.Event().wait)  # as for a thread in a device call that never returns
process._run = lambda given: process.TERMINATED
process.LAST_CALL_S = 0.5
sys.exit(process.main())
"""


def test_sigterm_ends_a_command_whose_device_call_never_returns() -> None:
    done = subprocess.run([sys.executable, "-c", _STUCK], timeout=60, check=False)
    assert done.returncode == 143
