"""Servers in processes of their own, and the load that ``legos bench server`` puts on them."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from legos.errors import EngineError

__all__ = ["Body", "drop_command", "load", "running", "serve_command", "stock_command"]

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


@asynccontextmanager
async def _pooled(url: str) -> AsyncGenerator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        yield client


def load(url: str, bodies: Sequence[Body]) -> float:
    """Completion tokens a second, all requests sent at once.

    Args:
        url: of the server.
        bodies: for ``POST /v1/completions``.

    Raises:
        EngineError: a request was refused.
    """

    async def one(client: httpx.AsyncClient, body: Body) -> int:
        response = await _patiently(client, body)
        if response.status_code != 200:
            raise EngineError(f"{url} answered {response.status_code}: {response.text[:200]}")
        return response.json()["usage"]["completion_tokens"]

    async def all_of_them() -> float:
        async with _pooled(url) as client:
            started = time.perf_counter()
            tokens = await asyncio.gather(*(one(client, body) for body in bodies))
            return sum(tokens) / (time.perf_counter() - started)

    return asyncio.run(all_of_them())


async def _patiently(client: httpx.AsyncClient, body: Body) -> httpx.Response:
    """Ask again where the server lets the connection fall: mlx-lm's takes few at a time."""
    for _ in range(PATIENCE):
        try:
            return await client.post("/v1/completions", json=body)
        except httpx.NetworkError:
            await asyncio.sleep(0.02)
    raise EngineError(f"{client.base_url} let a connection fall {PATIENCE} times")
