"""What to do when a vLLM server fails: start it again, or wait until somebody else has done so."""

import asyncio
import time
from collections.abc import Callable

from legos.clients.health import healthy
from legos.errors import EngineError
from legos.remote.process import ServerProcess

__all__ = ["GivenServer", "OwnServer"]

CHECK_S = 0.5  # time between two requests
SETTLE_S = 30.0  # for a process whose engine has failed to end by itself


class GivenServer:
    """A server that somebody else has started, and may start again."""

    def __init__(self, url: str, *, wait_s: float) -> None:
        """Describe a server.

        Args:
            url: its address.
            wait_s: maximum time to wait for it after a failure, seconds.
        """
        self.url = url
        self._wait_s = wait_s

    async def come_back(self, failure: Exception) -> None:
        """Wait until the server answers.

        Raises:
            EngineError: it does not within the time to wait.
        """
        if not await _answers_within(self.url, within_s=self._wait_s):
            raise EngineError(
                f"the vLLM server at {self.url} has not answered for {self._wait_s:g} s "
                f"({failure}); start it again"
            ) from failure


class OwnServer:
    """A server that runs in a process of ours."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self.url = process.url

    async def come_back(self, failure: Exception) -> None:
        """Start the server again, unless it answers.

        Raises:
            EngineError: it cannot be started; the message shows the end of its log.
        """
        process = self._process
        if await _answers_within(self.url, within_s=SETTLE_S, useful=lambda: process.running):
            return
        try:
            await asyncio.to_thread(process.restart)
        except EngineError as error:
            raise EngineError(f"{error}\nIt was started again because: {failure}") from failure


async def _answers_within(
    url: str, *, within_s: float, useful: Callable[[], bool] = lambda: True
) -> bool:
    """Whether a server answers ``/health`` within some time, while waiting is useful."""
    deadline = time.monotonic() + within_s
    while useful():
        if await healthy(url):
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(CHECK_S)
    return False
