"""macOS's tools, played by small scripts on PATH: refusals, facts, power, and no sleep."""

import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from short_runs import NIM

from legos import mac
from legos.cli.process import main
from legos.errors import ModelError
from legos.mac import awake, check_mac, mac_facts, on_battery


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of scripts, first on PATH of what takes itself for a Mac with Apple Silicon."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    fake(monkeypatch, machine="arm64", macos="15.5")
    return folder


def fake(monkeypatch: pytest.MonkeyPatch, *, machine: str, macos: str) -> None:
    """Only ``legos.mac`` takes this for a Mac: other libraries would load its frameworks."""
    known = SimpleNamespace(
        system=lambda: "Darwin",
        machine=lambda: machine,
        mac_ver=lambda: (macos, ("", "", ""), machine),
    )
    monkeypatch.setattr(mac, "platform", known)


def tool(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_macs_that_can_run_mlx_are_accepted(tools: Path) -> None:
    check_mac()


def test_other_systems_are_accepted_and_have_no_facts() -> None:
    check_mac()
    assert mac_facts() == {}
    assert not on_battery()


def test_a_python_for_intel_is_refused(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, machine="x86_64", macos="10.16")
    tool(tools, "sysctl", "echo 1")
    with pytest.raises(ModelError, match="x86_64 and runs under Rosetta, but MLX needs arm64"):
        check_mac()
    tool(tools, "sysctl", "exit 1")
    with pytest.raises(ModelError, match="x86_64; MLX runs on Macs with Apple Silicon only"):
        check_mac()


def test_an_old_macos_is_refused(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, machine="arm64", macos="13.6.1")
    with pytest.raises(ModelError, match=r"macOS 13\.6\.1; MLX needs 14 or newer: update"):
        check_mac()


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("macos", "wheel", "warned"),
    [
        ("26.1", "macosx_26_0_arm64", True),
        ("26.2", "macosx_26_0_arm64", False),
        ("26.1", "macosx_15_0_arm64", False),
        ("15.5", "macosx_14_0_arm64", False),
        ("26.1", None, False),
    ],
)
def test_a_wheel_for_a_newer_macos_26_is_named(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    macos: str,
    wheel: str | None,
    warned: bool,
) -> None:
    fake(monkeypatch, machine="arm64", macos=macos)

    def distribution(name: str) -> SimpleNamespace:
        if wheel is None or name != "mlx-metal":
            raise PackageNotFoundError(name)
        return SimpleNamespace(read_text=lambda _: f"Tag: py3-none-{wheel}\n")

    monkeypatch.setattr(mac, "distribution", distribution)
    check_mac()
    found = "macOS 26.1, but MLX's wheel for macOS 26 is built for 26.2" in caplog.text
    assert found == bool(caplog.text) == warned


@pytest.mark.slow
def test_the_refusal_comes_before_mlx_is_imported(tmp_path: Path) -> None:
    code = (
        "import platform, sys\n"
        "platform.system = lambda: 'Darwin'\n"
        "platform.machine = lambda: 'x86_64'\n"
        "from legos.cli.process import main\n"
        "code = main(['train', '--steps', '1', '--out', 'run'])\n"
        "print(code, [name for name in sys.modules if name.split('.')[0] in ('mlx', 'mlx_lm')])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "loading builtin\n2 []\n"
    assert done.stderr.startswith("error: this Python is built for x86_64")
    assert len(done.stderr.splitlines()) == 1


def test_facts_are_those_of_the_tools(tools: Path) -> None:
    tool(tools, "sysctl", 'case "$2" in machdep*) echo "Apple M9";; *) echo 20480;; esac')
    tool(tools, "pmset", "echo \"Now drawing from 'Battery Power'\"")
    tool(tools, "system_profiler", 'echo "Resolution: 1 x 1"; echo "  Display Asleep: Yes"')
    assert mac_facts() == {
        "macos": "15.5",
        "chip": "Apple M9",
        "power": "Now drawing from 'Battery Power'",
        "display": "asleep",
        "iogpu.wired_limit_mb": "20480",
    }


def test_facts_of_tools_that_fail_are_absent(tools: Path) -> None:
    for name in ("sysctl", "pmset", "system_profiler"):
        tool(tools, name, "echo broken; exit 1")
    assert mac_facts() == {"macos": "15.5"}


def test_caffeinate_runs_exactly_within_the_block(tools: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tool(tools, "caffeinate", f'echo "$$ $@" > {log}.new; mv {log}.new {log}; exec sleep 60')
    with awake():
        pid, arguments = read(log).split(maxsplit=1)
        assert arguments == f"-is -w {os.getpid()}\n"
        os.kill(int(pid), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


@pytest.mark.slow
@pytest.mark.parametrize("keep_awake", [True, False])
def test_a_run_keeps_the_mac_awake_unless_told_otherwise(
    keep_awake: bool, tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    tool(tools, "caffeinate", f'echo "$@" > {log}; exec sleep 60')
    if keep_awake:
        tool(tools, "pmset", "echo \"Now drawing from 'Battery Power'\"")
    arguments = ["train", *NIM, "--steps", "1", "--out", str(tmp_path / "run")]
    assert main([*arguments, *([] if keep_awake else ["--loop.no-keep-awake"])]) == 0
    assert log.exists() == keep_awake
    hint = "this Mac runs on battery; connect it to power"
    assert (hint in capsys.readouterr().out) == keep_awake


@pytest.mark.nightly
def test_a_server_keeps_the_mac_awake_until_it_ends(tools: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tool(tools, "caffeinate", f'echo "$$ $@" > {log}.new; mv {log}.new {log}; exec sleep 60')
    code = (
        "from types import SimpleNamespace\n"
        "from legos import mac\n"
        "mac.platform = SimpleNamespace(system=lambda: 'Darwin', machine=lambda: 'arm64', "
        "mac_ver=lambda: ('15.5',))\n"
        "from legos.cli.process import main\n"
        "print('ended', main(['serve', '--model', 'builtin', '--port', '0']))\n"
    )
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving")
        pid, arguments = read(log).split(maxsplit=1)
        assert arguments == f"-is -w {server.pid}\n"
        os.kill(int(pid), 0)
        server.terminate()
        assert server.stdout.read().endswith("ended 0\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def read(file: Path) -> str:
    ends = time.monotonic() + 60
    while not file.exists() and time.monotonic() < ends:
        time.sleep(0.01)
    return file.read_text()
