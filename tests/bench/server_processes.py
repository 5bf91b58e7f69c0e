"""Servers in separate processes: ours, mlx-lm's, and other programs' from their environments."""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from blas import with_blas

from legos.errors import ConfigError, EngineError
from legos.remote.process import hold_port

__all__ = [
    "PEERS",
    "ROWS",
    "Server",
    "drop_command",
    "peer_command",
    "running",
    "serve_command",
    "servers_of",
    "stock_command",
]

ROWS = 32  # completions that each server decodes together
START_S = 300.0
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

PEERS: Mapping[str, Sequence[str]] = {
    "mlx-openai-server": (
        *("launch", "--model-type", "lm", "--model-path", "{model}", "--host", "127.0.0.1"),
        *("--max-concurrency", "{rows}", "--no-log-file", "--log-level", "WARNING"),
    ),
    "rapid-mlx": ("serve", "{model}", "--max-num-seqs", "{rows}", "--log-level", "WARNING"),
    "vllm-mlx": (
        *("serve", "{model}", "--continuous-batching", "--max-num-seqs", "{rows}"),
        *("--host", "127.0.0.1"),
    ),
}
"""Program of another server -> its arguments; ``{rows}`` completions are decoded together."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs in a process of its own."""

    url: str
    pid: int

    def resident_bytes(self) -> int:
        """Memory of the process and of those that it started, as they are now."""
        listed = subprocess.run(
            ("ps", "-A", "-o", "pid=,ppid=,rss="), capture_output=True, text=True, check=True
        )
        rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
        family = {self.pid}
        for _ in rows:  # at most one generation for each process
            family |= {pid for pid, parent, _ in rows if parent in family}
        return 1024 * sum(kilobytes for pid, _, kilobytes in rows if pid in family)


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


def peer_command(program: Path, folder: str, *, rows: int) -> list[str]:
    """Command line of another server, which is installed in an environment of its own.

    Raises:
        ConfigError: the program does not exist, or its arguments are not known.
    """
    arguments = PEERS.get(program.name)
    if arguments is None:
        raise ConfigError(f"peer {program.name!r} is not known; expected {', '.join(PEERS)}")
    if not program.is_file():
        raise ConfigError(f"peer {program} does not exist; give the path of the installed program")
    return [str(program), *(text.format(model=folder, rows=rows) for text in arguments)]


@contextmanager
def servers_of(folder: Path, programs: Sequence[Path] = ()) -> Generator[Mapping[str, Server]]:
    """Within the block, our server, mlx-lm's and other programs serve one model.

    Args:
        folder: the model.
        programs: other servers, each installed in an environment of its own.
    """
    commands = {
        "legos": serve_command(str(folder), rows=ROWS),
        "mlx-lm": stock_command(str(folder), rows=ROWS),
        **{path.name: peer_command(path, str(folder), rows=ROWS) for path in programs},
    }
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(line)) for name, line in commands.items()}


def drop_command() -> list[str]:
    """Command line of a server that discards request bodies; its only argument is the port."""
    return [sys.executable, "-c", _DROP]


@contextmanager
def running(command: Sequence[str], *, health: str = "/health") -> Generator[Server]:
    """Within the block, a server runs in a separate process, with the BLAS that legos uses.

    Args:
        command: its command line without the port.
        health: a path that answers once the server is ready.

    Raises:
        EngineError: the server did not answer within five minutes.
    """
    held = hold_port()
    port = str(held.getsockname()[1])
    if sys.platform != "linux":  # where a held port cannot be listened on
        held.close()
    ending = [port] if "-c" in command else ["--port", port]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [*command, *ending], stdout=quiet, stderr=quiet, env=with_blas(os.environ)
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url + health, process)
        yield Server(url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        held.close()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=2, trust_env=False).status_code < 500:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise EngineError(f"the server at {url} did not start (exit code {process.poll()})")
