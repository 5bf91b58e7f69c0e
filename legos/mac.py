"""What legos needs of macOS: a refusal of Macs without MLX, facts, the power source, and no sleep.

macOS's own tools tell the facts. On other systems, and where a tool fails, they are absent.
"""

import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution

from legos.errors import ModelError

logger = logging.getLogger(__name__)
OLDEST = 14  # major version of macOS for which MLX has wheels
TOOL_S = 10.0  # seconds after which a tool counts as failed


def check_mac() -> None:
    """Refuse a Mac on which MLX cannot be imported; warn of one on which its kernels may fail.

    Raises:
        ModelError: the Python is built for Intel, or macOS is too old.
    """
    if platform.system() != "Darwin":
        return
    if platform.machine() != "arm64":
        python = f"this Python is built for {platform.machine()}"
        if _output("sysctl", "-n", "hw.optional.arm64") == "1":
            raise ModelError(
                f"{python} and runs under Rosetta, but MLX needs arm64; install legos again with "
                "an arm64 Python: uv python install cpython-3.12-macos-aarch64"
            )
        raise ModelError(f"{python}; MLX runs on Macs with Apple Silicon only")
    version = platform.mac_ver()[0]
    if int(version.partition(".")[0] or OLDEST) < OLDEST:
        raise ModelError(f"this is macOS {version}; MLX needs {OLDEST} or newer: update macOS")
    if version.split(".")[:2] in (["26"], ["26", "0"], ["26", "1"]) and _is_built_for_26():
        logger.warning(
            "this is macOS %s, but MLX's wheel for macOS 26 is built for 26.2 (mlx #4525), and its "
            "kernels fail on chips of the M5 family: update macOS",
            version,
        )


def _is_built_for_26() -> bool:
    """Whether the installed MLX is the wheel for macOS 26."""
    try:
        return "macosx_26_0" in (distribution("mlx-metal").read_text("WHEEL") or "")
    except PackageNotFoundError:
        return False


def mac_facts() -> Mapping[str, str]:
    """MacOS version, chip, power source, display and wired limit; empty on other systems."""
    if platform.system() != "Darwin":
        return {}
    displays = _output("system_profiler", "SPDisplaysDataType")
    display = "asleep" if "Display Asleep: Yes" in displays else "awake"
    facts = {
        "macos": platform.mac_ver()[0],
        "chip": _output("sysctl", "-n", "machdep.cpu.brand_string"),
        "power": _output("pmset", "-g", "batt").partition("\n")[0],
        "display": display if "Resolution:" in displays else "",
        "iogpu.wired_limit_mb": _output("sysctl", "-n", "iogpu.wired_limit_mb"),
    }
    return {name: fact for name, fact in facts.items() if fact}


def on_battery() -> bool:
    """Whether this is a Mac that draws its power from a battery."""
    return "'Battery Power'" in _output("pmset", "-g", "batt")


@contextmanager
def awake() -> Generator[None]:
    """Within the block, macOS does not sleep when idle; its display may."""
    if platform.system() != "Darwin" or shutil.which("caffeinate") is None:
        yield
        return
    # With -w, caffeinate also ends with this process if that is killed.
    with subprocess.Popen(["caffeinate", "-is", "-w", str(os.getpid())]) as caffeinate:
        try:
            yield
        finally:
            caffeinate.terminate()


def _output(*command: str) -> str:
    """What one of macOS's tools prints; empty on other systems and where the tool fails."""
    if platform.system() != "Darwin":
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
