"""Hostile and honest clients together, against ``legos serve`` as it is started."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hostile_clients import BUSY, Clients, aside, load, request
from pace import slowness

from legos.device import ModelHandle
from legos.weights.adapter import pack_adapter

pytestmark = pytest.mark.nightly

ATTACK_S, SETTLE_S = 20.0, 6.0  # the slowest clients leave after 5 s
SCORING_S = 2.0  # time that long scores have run when the server is told to end
END_S = 20.0  # for a server that waits 5 s for running requests
RELEASED_S = 3.0  # memory is returned to the system 2 s after a large body
GOAL_HEALTH_S, GOAL_SWAP_S = 0.25, 1.0  # p99 of one request's time
GOAL_MEMORY = 1.1  # resident memory after the attack / before
_PROBE = """
import http.client, json, psutil, sys, time
from concurrent.futures import ThreadPoolExecutor
port, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
server = psutil.Process(int(sys.argv[3]))
adapters = [open(path, "rb").read() for path in sys.argv[4:]]
waits = {"health": [], "swap": []}

def now():
    spent = server.cpu_times()
    return time.perf_counter(), spent.user + spent.system

def ask(kind, pause_s, method, path, bodies=(None,)):
    while time.monotonic() < until:
        number = len(waits[kind])
        began = now()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        body = bodies[number % len(bodies)]
        headers = {"content-type": "application/octet-stream"}
        connection.request(method, path.format(number), body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        waits[kind].append([after - before for after, before in zip(now(), began)])
        connection.close()
        time.sleep(pause_s)

with ThreadPoolExecutor(1) as pool:
    swaps = pool.submit(ask, "swap", 0.1, "POST", "/adapters/load?version={}", adapters)
    ask("health", 0.02, "GET", "/health")
    swaps.result()
print(json.dumps(waits))
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A running ``legos serve``, its port and its log."""
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "legos", "serve", "--port", "0", "--drain-s", "5"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "LEGOS_API_KEY"},
        )
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert found is not None
    yield process, int(found[1]), log
    process.kill()
    process.communicate()


def resident(process: subprocess.Popen[str]) -> int:
    """KiB of memory that a process holds."""
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(process.pid)]))


@pytest.fixture
def adapters(model: ModelHandle, tmp_path: Path) -> list[Path]:
    """Files of two adapters, to be loaded in turn."""
    base = model.base_adapter()
    rng = np.random.default_rng(1)
    other = {
        name: (0.01 * rng.standard_normal(np.shape(array))).astype(np.float32)
        for name, array in base.arrays.items()
    }
    paths = [tmp_path / "first", tmp_path / "second"]
    for path, adapter in zip(paths, (base, replace(base, arrays=other)), strict=True):
        path.write_bytes(pack_adapter(adapter))
    return paths


def end_while_scoring(process: subprocess.Popen[str], clients: Clients) -> float:
    """Tell the server to end while it computes long scores; returns the seconds that it takes."""
    with ThreadPoolExecutor(1) as pool:
        scores = pool.submit(aside, clients.long_scores())
        time.sleep(SCORING_S)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.wait(END_S)
        ended_s = time.monotonic() - began
        scores.result()
    return ended_s


def check_answers(clients: Clients) -> None:
    """Every kind of client was answered, with the status that its requests must get."""
    for (kind, status), number in clients.statuses.items():
        wanted = 400 if kind == "head" else 200
        wanted = int(kind[-3:]) if kind[-3:].isdigit() else wanted
        assert status in (wanted, 503), (kind, status, number)
    kinds = {kind.split()[0] for kind, _ in clients.statuses}
    told = {"honest", "short", "score", "bomb", "chat", "choices", "ended", "smuggled"}
    assert kinds >= told
    assert clients.statuses["half body", 200]
    assert clients.statuses["upload 429", 429]


def test_hostile_clients_harm_nobody(
    command: tuple[subprocess.Popen[str], int, Path], adapters: list[Path]
) -> None:
    """Times are the clock's; where the machine is busy, seconds of the server's processor.

    Memory is compared with that after two equal attacks: what grows with every attack is found.
    A cold server holds less. The first requests of each kind fill caches of a fixed size (trees of
    choices, texts, buffers of the device) and start threads, whose memory stays: of eight attacks,
    the first added 26 %, the second 12, and the others 3 together. The message has the cold figure
    too.
    """
    process, port, errors = command
    busy = load()
    figure, allowed = (0, 1.0) if busy <= BUSY else (1, busy)
    slow = slowness()
    clients = Clients(port)

    def attack() -> tuple[dict[str, list[list[float]]], int]:
        given = (port, ATTACK_S, process.pid, *adapters)
        probe = [sys.executable, "-c", _PROBE, *map(str, given)]
        with subprocess.Popen(probe, stdout=subprocess.PIPE, text=True) as watching:
            aside(clients.attack(ATTACK_S))
            waits = json.loads(watching.communicate(timeout=60)[0])
        time.sleep(SETTLE_S)
        return waits, settled()

    def settled() -> int:
        aside(clients.one_answer("large", request("/tokenize", {"prompt": "a" * 300_000})))
        time.sleep(RELEASED_S)
        return resident(process)

    cold = settled()
    aside(clients.every_bomb())
    attack()
    _, before = attack()
    waits, after = attack()
    ended_s = end_while_scoring(process, clients)
    slow = max(slow, slowness())
    allowed *= slow

    measured = {kind: np.quantile(waits[kind], 0.99, axis=0) for kind in waits}
    health, swap = (float(measured[kind][figure]) for kind in ("health", "swap"))
    told = {f"{kind} {status}": number for (kind, status), number in clients.statuses.items()}
    seen = f"p99 by the clock and by the server's processor, s: {measured}; "
    seen += f"busy: {busy:.1f}; slowness: {slow:.2f}; {before} to {after} KiB "
    seen += f"({cold} at the start); ended in {ended_s:.1f} s; {told}"
    logging.getLogger(__name__).info(seen)
    check_answers(clients)
    assert health < GOAL_HEALTH_S * allowed, seen
    assert swap < GOAL_SWAP_S * allowed, seen
    assert after < GOAL_MEMORY * before, seen
    log = errors.read_text()
    assert process.returncode == 0, log[-1000:]
    assert "Traceback" not in log, log[-10_000:]
