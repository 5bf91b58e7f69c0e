"""A server in a process of its own, which ends with this process: vLLM, or ours."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from legos.errors import EngineError
from legos.remote import guardian

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
START_S = 900.0  # maximum time until it answers: a large model is read from disk and compiled
CHECK_S, REPORT_S = 0.3, 10.0
SHOWN_LINES = 12  # of the log, in an error
SHOWN_BYTES = 1 << 20  # at the end of the log, which are searched for an error
_ERROR = re.compile(r"\bERROR\b.*\b\w+(Error|Exception): ")
STOP_S = guardian.GRACE_S + 4.0

Command = Callable[[int], Sequence[str]]
"""The command line of a server from its port."""


def hold_port(host: str = LOOPBACK) -> socket.socket:
    """A socket with a free port, which no other program gets until it is closed.

    A server that gets the port on its command line can listen there: on Linux alone, and if it sets
    SO_REUSEADDR, as servers do.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


def serve_command(model: str, options: Mapping[str, object]) -> list[str]:
    """The command line of ``legos serve`` as a process of ours, without its address.

    Args:
        model: name of the model, or its folder.
        options: further options without their dashes.
    """
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    line = [sys.executable, "-m", "legos", "serve", "--model", model, "--no-keep-awake"]
    return [*line, "--drain-s", "1", *given]  # its caller has drained before


class ServerProcess:
    """Starts a server, waits until it answers, and stops it with everything it started.

    A guardian process between the two ends the server also when this process is killed.

    Attributes:
        url: address of the server.
        log: file that receives the server's output.
        program: its name, for messages.
    """

    def __init__(
        self,
        command: Command,
        *,
        log: Path,
        host: str = LOOPBACK,
        program: str = "the server",
        environment: Mapping[str, str] | None = None,
        say: Callable[[str], object] = logger.info,
    ) -> None:
        """Describe a server; nothing is started yet.

        Args:
            command: its command line.
            log: receives its output.
            host: its address.
            program: its name, for messages.
            environment: its environment; None: that of this process.
            say: receives its progress while it starts, one line at a time.
        """
        self._held = hold_port(host)  # a free port, which nothing else gets until ``close``
        port = self._held.getsockname()[1]
        if sys.platform != "linux":  # a server could not listen there
            self._held.close()
        at = LOOPBACK if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        self.url = f"http://{at}:{port}"
        self.log = log
        self._command = list(command(port))
        self.program = program
        self._environment = environment
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Number of the guardian's process and of the group of all; None: none was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; ``wait`` waits until it answers."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        line = guardian.guarded(self._command)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            EngineError: it ended or did not answer in time; the message shows the end of its log.
        """
        started = time.monotonic()
        reported = started - 2 * REPORT_S  # the first line comes at once
        while not self._answers():
            now = time.monotonic()
            if self._closed.wait(CHECK_S):
                raise EngineError(f"{self.program} at {self.url} was stopped while it started")
            if not self.running:
                raise EngineError(f"{self.program} ended before it answered.\n{self.end_of_log()}")
            if now - started > START_S:
                self.close()
                raise EngineError(
                    f"{self.program} did not answer within {START_S:g} s.\n{self.end_of_log()}"
                )
            if now - reported > REPORT_S:
                reported = now
                so_far = f", {now - started:.0f} s so far" if now - started > REPORT_S else ""
                self._say(f"{self.program} is starting{so_far} (log: {self.log})")

    def join(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        """Stop the server and everything that it started."""
        self._closed.set()
        self._held.close()
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        # Also where only the guardian was killed. macOS: EPERM where all that is left are zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end_of_log(self) -> str:
        """The first error near the end of the log, and its last lines."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - SHOWN_BYTES))
            text = log.read(SHOWN_BYTES).decode(errors="replace")
        lines = [line for line in text.splitlines() if line]
        shown = "\n".join(f"  {line[:300]}" for line in lines[-SHOWN_LINES:])
        errors = [line for line in lines[:-SHOWN_LINES] if _ERROR.search(line)]
        cause = f"Its first error: {errors[0][:1000]}\n" if errors else ""
        return f"{cause}The end of its log, {self.log}:\n{shown}"

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError):  # the certificates would take 50 ms to read
            health = f"{self.url}/health"
            return httpx.get(health, timeout=5.0, trust_env=False, verify=False).is_success
        return False
