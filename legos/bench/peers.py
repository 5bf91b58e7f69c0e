"""Servers in processes of their own, and the load that ``legos bench server`` puts on them."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import httpx

from legos.errors import EngineError

__all__ = ["Body", "Clients", "drop_command", "running", "serve_command", "stock_command"]

Body = dict[str, Any]
PATIENCE = 100
_DROP = """
import sys, uvicorn
async def drop(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
uvicorn.run(drop, port=int(sys.argv[1]), lifespan="off", log_level="warning")
"""
"""A server that reads a body and drops it."""


def serve_command(folder: str, *, rows: int) -> list[str]:
    """``legos serve`` on a model."""
    return [sys.executable, "-m", "legos", "serve", "--model", folder, "--max-batch", str(rows)]


def stock_command(folder: str, *, rows: int) -> list[str]:
    """mlx-lm's own server on a model."""
    return [
        *(sys.executable, "-m", "mlx_lm", "server", "--model", folder),
        *("--decode-concurrency", str(rows), "--prompt-concurrency", str(rows)),
        *("--log-level", "WARNING"),
    ]


def drop_command() -> list[str]:
    """A server that reads what it is sent and does nothing with it; takes its port alone."""
    return [sys.executable, "-c", _DROP]


@contextmanager
def running(command: Sequence[str], *, health: str = "/health") -> Generator[str]:
    """Within the block, a server runs in a process of its own.

    Args:
        command: its command line; the port is appended, as an option unless it is a script.
        health: a path that answers once it is ready.

    Yields:
        Its address.

    Raises:
        EngineError: it did not answer within two minutes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    last = [port] if "-c" in command else ["--port", port]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*command, *last], stdout=quiet, stderr=quiet, env=os.environ)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url + health, process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=2).status_code < 500:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise EngineError(f"the server at {url} did not come up (exit code {process.poll()})")


class Clients:
    """Asks one server, many requests at once, over connections that stay open between rounds."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
        self._url = url
        self._runner = asyncio.Runner()
        self._http = httpx.AsyncClient(base_url=url, timeout=300, limits=limits)

    def __enter__(self) -> "Clients":
        """Nothing to do: connections are made when they are needed."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self._runner.run(self._http.aclose())
        self._runner.close()

    def load(self, bodies: Sequence[Body]) -> float:
        """Completion tokens a second, all requests sent at once.

        Args:
            bodies: for ``POST /v1/completions``.

        Raises:
            EngineError: a request was refused.
        """
        return self._runner.run(self._load(bodies))

    async def _load(self, bodies: Sequence[Body]) -> float:
        started = time.perf_counter()
        tokens = await asyncio.gather(*(self._ask(body) for body in bodies))
        return sum(tokens) / (time.perf_counter() - started)

    async def _ask(self, body: Body) -> int:
        """Completion tokens of one answer.

        A server that lets the connection fall is asked again: mlx-lm's takes few at a time.
        """
        for _ in range(PATIENCE):
            try:
                response = await self._http.post("/v1/completions", json=body)
            except httpx.NetworkError:
                await asyncio.sleep(0.02)
                continue
            if response.status_code != 200:
                said = f"{response.status_code}: {response.text[:200]}"
                raise EngineError(f"{self._url} answered {said}")
            return response.json()["usage"]["completion_tokens"]
        raise EngineError(f"{self._url} let a connection fall {PATIENCE} times")
