"""The injectors of chaos hit what they mean to hit, and say so where they do not."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from chaos import faults
from chaos.clock import Clock
from chaos.processes import state_of
from chaos.proxy import DELAY_S, FaultyProxy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets limits")
BODY = bytes(100_000)
DRAW = random.Random(0)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    """A proxy before a server that answers every request with ``BODY``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        with FaultyProxy(server.server_address[1]) as made:
            yield made
        server.shutdown()
        thread.join()


@contextmanager
def sleeping(*code: str, **options: Any) -> "Iterator[subprocess.Popen[Any]]":
    command = [sys.executable, "-c", *(code or ("import time; time.sleep(60)",))]
    with subprocess.Popen(command, **options) as process:
        yield process
        process.kill()


def get(proxy: FaultyProxy) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{proxy.port}", trust_env=False)


def test_the_proxy_does_what_it_is_told_and_counts_it(proxy: FaultyProxy) -> None:
    assert get(proxy).content == BODY
    assert not proxy.hits
    proxy.mode = "refuse"
    assert get(proxy).status_code == 502
    proxy.mode = "drop"
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        get(proxy)
    proxy.mode = "truncate"
    with pytest.raises(httpx.RemoteProtocolError, match="without"):
        get(proxy)
    assert proxy.hits == {"refuse": 1, "drop": 1, "truncate": 1}
    proxy.mode = "delay"
    began = time.monotonic()
    assert get(proxy).content == BODY
    assert time.monotonic() - began >= DELAY_S * proxy.hits["delay"] > 0


def test_a_proxy_that_nobody_asks_is_a_miss(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "SEEN_S", 0.1)
    monkeypatch.setattr(faults.time, "sleep", partial(_short, time.sleep))
    world: Any = SimpleNamespace(servers=SimpleNamespace(proxies=[proxy, proxy]))
    with pytest.raises(faults.MissedError, match="no connection met 'drop'"):
        faults.misroute("drop", world, DRAW)
    assert proxy.mode == "pass"


def _short(sleep: Any, seconds: float) -> None:
    sleep(min(seconds, 0.05))


def test_a_stopped_process_stands_still_and_a_killed_one_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults.time, "sleep", partial(_short, time.sleep))
    with sleeping() as process:
        world: Any = SimpleNamespace(trainer=process, tools=lambda: [process.pid])
        assert faults.stop_trainer(world, random.Random(8)).startswith("state T for ")
        assert state_of(process.pid) in ("S", "R")
        assert "gone" in faults.kill_tool(world, DRAW)
        with pytest.raises(faults.MissedError, match="state 'Z'"):
            faults.stop_trainer(world, DRAW)
        process.wait()
        assert state_of(process.pid) == ""
        with pytest.raises(faults.MissedError, match="had ended before"):
            faults.signal_trainer(faults.signal.SIGINT, world, DRAW)


def test_the_wall_clock_of_a_process_moves_and_its_monotonic_one_does_not(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    code = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with sleeping(code, env=clock.environment, **pipes) as process:

        def ask() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("now\n")
            wall, monotonic = map(float, process.stdout.readline().split())
            return wall - time.time(), monotonic - time.monotonic()

        assert ask() == pytest.approx((0, 0), abs=1)
        clock.move(-7200.0)
        assert clock.read == 0
        assert ask() == pytest.approx((-7200, 0), abs=1)
        assert clock.read == 1


def test_a_process_on_a_full_disk_cannot_write(tmp_path: Path) -> None:
    code = "import sys\nfile = open(sys.argv[1], 'wb', 0)\nwhile input(): file.write(bytes(2000))"
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with sleeping(code, str(tmp_path / "file"), **pipes) as process:
        world: Any = SimpleNamespace(trainer=process)
        assert "files of at most" in faults.fill_disk(world, DRAW)
        _, said = process.communicate(b"go\ngo\n")  # the first may write what still fits
        assert b"File too large" in said
