"""Servers in separate processes, and clients that put load on them."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from legos.errors import EngineError

__all__ = ["Body", "clients", "drop_command", "running", "serve_command", "stock_command"]

Body = dict[str, Any]
ATTEMPTS = 100
_DROP = """
import sys, uvicorn
async def drop(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
uvicorn.run(drop, port=int(sys.argv[1]), lifespan="off", log_level="warning")
"""
"""A server that reads a request body and discards it."""


def serve_command(folder: str, *, rows: int) -> list[str]:
    """Command line of ``legos serve``."""
    return [sys.executable, "-m", "legos", "serve", "--model", folder, "--max-batch", str(rows)]


def stock_command(folder: str, *, rows: int) -> list[str]:
    """Command line of mlx-lm's server."""
    return [
        *(sys.executable, "-m", "mlx_lm", "server", "--model", folder),
        *("--decode-concurrency", str(rows), "--prompt-concurrency", str(rows)),
        *("--log-level", "WARNING"),
    ]


def drop_command() -> list[str]:
    """Command line of a server that discards request bodies; its only argument is the port."""
    return [sys.executable, "-c", _DROP]


@contextmanager
def running(command: Sequence[str], *, health: str = "/health") -> Generator[str]:
    """Within the block, a server runs in a separate process.

    Args:
        command: its command line without the port.
        health: a path that answers once the server is ready.

    Yields:
        The address of the server.

    Raises:
        EngineError: the server did not answer within two minutes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ending = [port] if "-c" in command else ["--port", port]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*command, *ending], stdout=quiet, stderr=quiet)
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
    raise EngineError(f"the server at {url} did not start (exit code {process.poll()})")


@contextmanager
def clients(url: str) -> Generator[Callable[[Sequence[Body]], float]]:
    """Within the block, many clients ask a server over connections that stay open.

    Args:
        url: address of the server.

    Yields:
        A function that sends bodies to ``POST /v1/completions`` at once and returns completion
        tokens per second. It raises ``EngineError`` where the server refuses a request.
    """
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    http = httpx.AsyncClient(base_url=url, timeout=300, limits=limits)

    async def load(bodies: Sequence[Body]) -> float:
        started = time.perf_counter()
        tokens = await asyncio.gather(*(_ask(http, body) for body in bodies))
        return sum(tokens) / (time.perf_counter() - started)

    with asyncio.Runner() as runner:
        try:
            yield lambda bodies: runner.run(load(bodies))
        finally:
            runner.run(http.aclose())


async def _ask(http: httpx.AsyncClient, body: Body) -> int:
    """Completion tokens of one answer.

    A request is sent again where the server closes the connection: mlx-lm's accepts few at a time.
    """
    for _ in range(ATTEMPTS):
        try:
            response = await http.post("/v1/completions", json=body)
        except httpx.NetworkError:
            await asyncio.sleep(0.02)
            continue
        if response.status_code != 200:
            raise EngineError(
                f"{http.base_url} answered {response.status_code}: {response.text[:200]}"
            )
        return response.json()["usage"]["completion_tokens"]
    raise EngineError(f"{http.base_url} closed the connection {ATTEMPTS} times")
