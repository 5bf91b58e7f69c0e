"""Hostile and honest clients together, against ``legos serve`` as it is started."""

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legos.device import ModelHandle
from legos.weights.adapter import pack_adapter

pytestmark = pytest.mark.slow

HONEST = 64
WARM_S, ATTACK_S, SETTLE_S = 5.0, 20.0, 13.0  # heads that do not come are waited for 10 s
GOAL_HEALTH_S, GOAL_SWAP_S = 0.25, 1.0  # p99; 0.24 to 0.26 s and 0.5 to 0.9 s were measured
SLACK = 3.0  # because the clients take the same cores
HI = [{"role": "user", "content": "Nim: 5 left, last one wins.\nMoves: 1 2 3"}]
_HEALTH = """
import http.client, json, sys, time
port, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
waits = []
while time.monotonic() < until:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    waits.append(time.perf_counter() - began)
    connection.close()
    time.sleep(0.02)
print(json.dumps(waits))
"""


def request(path: str, body: Any = None, kind: str = "application/json") -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def nested(levels: int) -> bytes:
    return b'{"prompt": [1], "metadata": ' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


BOMBS: Sequence[tuple[str, Any, int]] = [
    ("/v1/completions", nested(100_000), 413),
    ("/v1/completions", nested(1_000), 400),
    ("/v1/completions", {"prompt": [None] * 300_000}, 400),
    ("/v1/completions", {"prompt": [1], **{f"f{n}": n for n in range(50_000)}}, 413),
    ("/v1/completions", {"prompt": [1], "logit_bias": dict.fromkeys(map(str, range(900)), 1)}, 400),
    ("/v1/completions", {"prompt": [[1]] * 2_000, "n": 128}, 400),
    ("/v1/completions", {"prompt": [1], "choices": [f"{n:1000}" for n in range(1_000)]}, 400),
    ("/v1/chat/completions", {"messages": [{"role": 1}] * 9_000}, 400),
    ("/tokenize", {"prompt": "word " * 200_000}, 200),
    ("/detokenize", {"tokens": [1] * 200_000}, 400),
    ("/adapters/load?version=1", b"x" * 1_000_000, 400),
]


def answers(said: bytes) -> list[int]:
    """The statuses of all that was answered on a connection, but for interim responses."""
    found = re.findall(rb"HTTP/1\.1 (\d{3}) [A-Za-z -]+\r\n", said)
    return [int(status) for status in found if status != b"100"]


class Clients:
    """What all kinds of clients do, until a moment."""

    def __init__(self, port: int, adapters: Sequence[bytes]) -> None:
        self.port = port
        self.adapters = adapters
        self.until = 0.0
        self.number = 0
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.swaps: list[float] = []

    async def exchange(self, sent: bytes, *, half: bool = False) -> bytes:
        """Send something and read until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        said = b""
        try:
            writer.write(sent)
            if half:
                writer.write_eof()
            while piece := await reader.read(1 << 16):
                said += piece
        finally:
            writer.close()
        return said

    async def one_answer(self, kind: str, sent: bytes, *, half: bool = False) -> bytes:
        """Send a request; it is answered once."""
        said = await self.exchange(sent, half=half)
        found = answers(said)
        assert len(found) == 1, (kind, said[:500])
        self.statuses[kind, found[0]] += 1
        return said

    async def honest(self) -> None:
        self.number += 1
        stream = self.number % 2 == 0
        body = {"prompt": [1, 20], "max_tokens": 16, "seed": self.number, "stream": stream}
        said = await self.one_answer("honest", request("/v1/completions", body))
        if stream:
            assert said.count(b"[DONE]") == said.count(b'"finish_reason":"') == 1, said
        else:
            assert len(json.loads(said.partition(b"\r\n\r\n")[2])["choices"]) == 1

    async def half_closing(self) -> None:
        body = {"messages": HI, "max_tokens": 8}
        await self.one_answer("half", request("/v1/chat/completions", body), half=True)

    async def scoring(self) -> None:
        prompts = [{"messages": HI, "choices": [str(n) for n in range(30)]}] * 16
        await self.one_answer("score", request("/v1/score", {"prompts": prompts}))

    async def swapping(self) -> None:
        self.number += 1
        began = time.perf_counter()
        path = f"/adapters/load?version={self.number}"
        kind = "application/octet-stream"
        await self.one_answer("swap", request(path, self.adapters[self.number % 2], kind))
        self.swaps.append(time.perf_counter() - began)
        await asyncio.sleep(0.2)

    async def bombing(self) -> None:
        self.number += 1
        path, body, status = BOMBS[self.number % len(BOMBS)]
        kind = "application/octet-stream" if path.startswith("/adapters") else "application/json"
        await self.one_answer(f"bomb {path} {status}", request(path, body, kind))
        await asyncio.sleep(0.1)

    async def cancelling(self) -> None:
        body = {"prompt": [1, 20], "max_tokens": 500, "n": 4, "ignore_eos": True, "stream": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request("/v1/completions", body))
        self.number += 1
        if self.number % 2:
            await reader.read(1)
        writer.transport.abort()
        await asyncio.sleep(0.1)

    async def slow(self) -> None:
        """A head that comes byte by byte is cut off."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /health HTTP/1.1\r\nX: ")
        reading = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            while not reading.done():
                writer.write(b"x")
                await asyncio.sleep(0.5)
        with suppress(ConnectionError):
            (status,) = answers(await reading)
            self.statuses["slow", status] += 1
        writer.close()

    async def flooding(self) -> None:
        """Four hundred connections that ask for nothing."""
        with suppress(ConnectionError):
            pairs = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", self.port) for _ in range(400))
            )
            for _, writer in pairs:
                writer.write(b"POST /v1/comp")
            await asyncio.sleep(1)
            for _, writer in pairs:
                writer.transport.abort()

    async def large(self) -> None:
        with suppress(ConnectionError):  # reset while it still sends
            said = await self.exchange(b"GET /health HTTP/1.1\r\nX: " + b"x" * 3_000_000)
            for status in answers(said):
                self.statuses["large", status] += 1
        await asyncio.sleep(0.2)

    async def warm_up(self) -> None:
        """Everybody for a while, then every bomb four times: what stays for good is taken now."""
        await self.attack(WARM_S)

        async def bomb() -> None:
            for _ in range(2 * len(BOMBS)):
                await self.bombing()

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(bomb())

    async def attack(self, seconds: float) -> None:
        """Everybody at once."""
        self.until = time.monotonic() + seconds

        async def repeated(act: Callable[[], Awaitable[None]]) -> None:
            while time.monotonic() < self.until:
                await act()

        crowd: Mapping[Callable[[], Awaitable[None]], int] = {
            self.honest: HONEST,
            self.half_closing: 4,
            self.scoring: 2,
            self.swapping: 1,
            self.bombing: 2,
            self.cancelling: 4,
            self.slow: 30,
            self.flooding: 1,
            self.large: 1,
        }
        async with asyncio.TaskGroup() as group:
            for act, number in crowd.items():
                for _ in range(number):
                    group.create_task(repeated(act))


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


def test_hostile_clients_harm_nobody(
    command: tuple[subprocess.Popen[str], int, Path], model: ModelHandle
) -> None:
    process, port, errors = command
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # programs that want each core
    base = model.base_adapter()
    rng = np.random.default_rng(1)
    other = {
        name: (0.01 * rng.standard_normal(np.shape(array))).astype(np.float32)
        for name, array in base.arrays.items()
    }
    clients = Clients(port, [pack_adapter(base), pack_adapter(replace(base, arrays=other))])
    asyncio.run(clients.warm_up())
    time.sleep(SETTLE_S)
    before = resident(process)
    clients.swaps.clear()
    probe = subprocess.Popen(
        [sys.executable, "-c", _HEALTH, str(port), str(ATTACK_S)], stdout=subprocess.PIPE, text=True
    )
    asyncio.run(clients.attack(ATTACK_S))
    waits = json.loads(probe.communicate(timeout=60)[0])
    time.sleep(SETTLE_S)
    after = resident(process)
    process.send_signal(signal.SIGTERM)
    process.wait(20)

    health, swap = (float(np.quantile(all_of, 0.99)) for all_of in (waits, clients.swaps))
    told = {f"{kind} {status}": number for (kind, status), number in clients.statuses.items()}
    seen = f"/health {health:.3f} s, swaps {swap:.3f} s (p99), {before} to {after} KiB, "
    seen += f"{others:.1f} programs for each core before; {told}"
    logging.getLogger(__name__).info(seen)
    for (kind, status), number in clients.statuses.items():
        wanted = {"slow": 408, "large": 431}.get(kind, 200)
        wanted = int(kind.split()[-1]) if kind.startswith("bomb") else wanted
        assert status in (wanted, 503), (kind, status, number)
    kinds = {kind.split()[0] for kind, _ in clients.statuses}
    assert kinds >= {"honest", "half", "score", "swap", "bomb", "slow"}
    assert health < GOAL_HEALTH_S * SLACK * others, seen
    assert swap < GOAL_SWAP_S * SLACK * others, seen
    assert after < 1.5 * before, seen  # 0.95 to 1.33 were measured
    log = errors.read_text()
    assert process.returncode == 0, log[-1000:]
    assert "Traceback" not in log, log[-10_000:]
