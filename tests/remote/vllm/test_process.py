"""A server's process: how it starts, what its failure shows, and that nothing outlives this one."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from legos.errors import ConfigError, EngineError
from legos.remote import process
from legos.remote.process import ServerProcess, hold_port
from legos.remote.vllm import command
from legos.remote.vllm.command import (
    CPU_CACHE,
    THREADS,
    VllmOptions,
    find_vllm,
    vllm_command,
    vllm_environment,
)

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("worker", child.pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
OWNER = """
import sys, time
from pathlib import Path
from legos.remote.process import ServerProcess
line = sys.argv[2:]
server = ServerProcess(lambda port: [*line, str(port)], log=Path(sys.argv[1]))
server.start()
server.wait()
print(server.url, flush=True)
time.sleep(600)
"""
OPTIONS = VllmOptions(
    model="m", name="tiny", dtype="float32", context=2048, rank=12, max_loras=3, arguments=("--x",)
)


def server_command(port: int) -> list[str]:
    return [sys.executable, "-c", SERVER, str(port)]


def worker_of(log: Path) -> int:
    return int(log.read_text().split("worker ")[-1].split()[0])


def ends(pid: int, *, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists():  # killed, and not waited for by its new parent
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_address_of_ipv6_stands_in_brackets(tmp_path: Path) -> None:
    server = ServerProcess(lambda _: ["server"], log=tmp_path / "log", host="::1")
    with closing(server):
        assert re.fullmatch(r"http://\[::1\]:[0-9]+", server.url)


def test_a_server_answers_and_ends_with_all_that_it_started(tmp_path: Path) -> None:
    server = ServerProcess(server_command, log=tmp_path / "new" / "log")
    server.start()
    server.wait()
    worker = worker_of(server.log)
    assert httpx.get(f"{server.url}/health", trust_env=False).is_success
    assert server.running
    server.close()
    assert not server.running
    assert ends(worker)
    server.close()  # nothing is left to do


def test_a_group_of_zombies_which_macos_refuses_to_signal_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerProcess(lambda _: [sys.executable, "-c", ""], log=tmp_path / "log")
    server.start()
    server.join()

    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "killpg", refuse)
    server.close()
    assert not server.running


@pytest.mark.skipif(sys.platform != "linux", reason="it needs prctl")
def test_a_server_ends_where_only_its_guardian_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(server_command, log=tmp_path / "log")
    server.start()
    server.wait()
    assert server.pid is not None
    (own,) = psutil.Process(server.pid).children()
    os.kill(server.pid, signal.SIGKILL)
    assert ends(own.pid)
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a held port cannot be listened on elsewhere")
def test_nobody_else_gets_the_port_of_a_server_that_is_down(tmp_path: Path) -> None:
    server = ServerProcess(server_command, log=tmp_path / "log")
    port = int(server.url.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    server.start()
    server.wait()
    with socket.create_connection(("127.0.0.1", port)):
        pass
    server.close()
    with hold_port() as held, socket.socket() as other:
        assert held.getsockname()[1] != port or sys.platform != "linux"
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))


def test_a_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = [sys.executable, "-c", OWNER, str(log), sys.executable, "-c", SERVER]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        worker = worker_of(log)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert ends(worker)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)


def test_a_server_that_ends_shows_the_end_of_its_own_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of another run\n")
    script = "print('first'); print('ValueError: no such model'); raise SystemExit(3)"
    server = ServerProcess(lambda _: [sys.executable, "-c", script], log=log)
    server.start()
    with pytest.raises(EngineError, match="ended before it answered") as failed:
        server.wait()
    assert "ValueError: no such model" in str(failed.value)
    assert "exit code 3" in str(failed.value)
    assert str(log) in str(failed.value)
    assert "another run" not in str(failed.value)
    server.close()


def test_an_error_reads_the_end_of_a_long_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SHOWN_BYTES", 200)
    log = tmp_path / "log"
    log.write_text("ERROR OSError: long ago\n" + 20 * "a line\n" + "ERROR ValueError: \u00fcber\n")
    with closing(ServerProcess(lambda _: ["server"], log=log)) as server:
        log.write_text(log.read_text() + 12 * "a line\n")
        shown = server.end_of_log()
    assert "Its first error: ERROR ValueError: \u00fcber" in shown
    assert "long ago" not in shown


def test_a_server_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START_S", 0.5)
    script = "import time; print('loading', flush=True); time.sleep(600)"
    line = [sys.executable, "-c", script]
    told: list[str] = []
    log = tmp_path / "log"
    server = ServerProcess(lambda _: line, log=log, say=told.append)
    server.start()
    with pytest.raises(EngineError, match=r"did not answer within 0\.5 s"):
        server.wait()
    assert not server.running
    assert told == [f"the server is starting (log: {log})"]
    server.close()


def test_the_command_has_room_for_the_adapters_and_reports_the_sampler_s_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_GPUS", ())
    line = vllm_command(Path("/bin/vllm"), OPTIONS, port=8011)
    text = " ".join(line)
    assert text.startswith("/bin/vllm serve m --served-model-name tiny --host 127.0.0.1 --port 80")
    assert "--enable-lora --max-lora-rank 16 --max-loras 3" in text
    assert "--logprobs-mode processed_logprobs --generation-config vllm" in text
    assert "--max-num-batched-tokens 16384" in text
    assert "--disable-uvicorn-access-log" in line  # its log would grow with every request
    assert line[-1] == "--x"
    monkeypatch.setattr(command, "_GPUS", (tmp_path,))
    assert "--max-num-batched-tokens" not in vllm_command(Path("/bin/vllm"), OPTIONS, port=8011)


def test_a_rank_that_vllm_does_not_serve_is_refused() -> None:
    large = VllmOptions(model="m", name="t", dtype="float32", context=64, rank=600, max_loras=1)
    with pytest.raises(ConfigError, match=r"rank 600 .*512; set training\.lora_rank"):
        vllm_command(Path("vllm"), large, port=1)


def test_the_environment_is_that_of_the_user_without_this_program_s_own() -> None:
    given = {"HOME": "/home/x", "LD_PRELOAD": "x.so", "VLLM_CPU_OMP_THREADS_BIND": "0-3"}
    given |= dict.fromkeys(("TORCHELASTIC_USE_AGENT_STORE", "RANK", "WORLD_SIZE"), "1")
    found = vllm_environment(given)
    assert found["HOME"] == "/home/x"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert not found.keys() & (given.keys() - {"HOME", "VLLM_CPU_OMP_THREADS_BIND"})


def test_vllm_for_cpus_gets_a_part_of_the_free_memory_unless_somebody_says_how_much() -> None:
    assert int(vllm_environment({})[CPU_CACHE]) >= 1
    assert vllm_environment({CPU_CACHE: "3"})[CPU_CACHE] == "3"
    asked = vllm_environment({}, ["vllm", "serve", "--gpu-memory-utilization", "0.5"])
    assert CPU_CACHE not in asked


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "7")])
def test_vllm_for_cpus_leaves_a_core_to_the_others(
    cores: int, threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(command, "_GPUS", (tmp_path / "gpu",))
    assert vllm_environment({})[THREADS] == threads
    assert vllm_environment({THREADS: "5"})[THREADS] == "5"
    (tmp_path / "gpu").touch()
    assert THREADS not in vllm_environment({})


def test_the_program_is_found_or_the_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.delenv("LEGOS_VLLM_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_vllm() == program
    monkeypatch.setenv("PATH", "")
    assert find_vllm(program) == program
    with pytest.raises(ConfigError, match=r"'vllm' is not found; .*LEGOS_VLLM_BIN"):
        find_vllm()
    monkeypatch.setenv("LEGOS_VLLM_BIN", str(program))
    assert find_vllm() == program


@pytest.mark.vllm
def test_the_real_server_starts_and_lists_the_model(vllm_server: ServerProcess) -> None:
    listed = httpx.get(f"{vllm_server.url}/v1/models", trust_env=False).json()
    assert [model["id"] for model in listed["data"]] == ["builtin"]
