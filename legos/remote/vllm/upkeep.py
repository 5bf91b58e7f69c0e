"""What to do when a vLLM server fails: start it again, or wait until somebody else has done so."""

import asyncio
import time

from legos.clients.health import healthy
from legos.errors import EngineError
from legos.remote.process import ServerProcess

__all__ = ["Upkeep"]

CHECK_S = 0.5  # time between two requests
SETTLE_S = 30.0  # for a process of ours whose engine has failed to end by itself
WAIT_S = 600.0  # for a server that somebody else starts again


class Upkeep:
    """A vLLM server, and what to do when it fails.

    Attributes:
        url: address of the server.
    """

    def __init__(self, server: str | ServerProcess, *, wait_s: float | None = None) -> None:
        """Describe a server.

        Args:
            server: the address of one that somebody else has started, and may start again; or a
                process of ours.
            wait_s: maximum time to wait for it after a failure, seconds; None: ten minutes, or half
                a minute for a process of ours, which is then started again.
        """
        self._process = None if isinstance(server, str) else server
        self.url = server if isinstance(server, str) else server.url
        usual = WAIT_S if self._process is None else SETTLE_S
        self._wait_s = usual if wait_s is None else wait_s

    async def come_back(self, failure: Exception) -> None:
        """Return once the server answers again; a process of ours is started again.

        Raises:
            EngineError: it does not answer in time, or cannot be started; the message has the
                cause, and the end of the log of our process.
        """
        process = self._process
        deadline = time.monotonic() + self._wait_s
        while process is None or process.running:
            if await healthy(self.url):
                return
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(CHECK_S)
        if process is None:
            raise EngineError(
                f"the vLLM server at {self.url} has not answered for {self._wait_s:g} s "
                f"({failure}); start it again"
            ) from failure
        try:
            await asyncio.to_thread(process.restart)
        except EngineError as error:
            raise EngineError(f"{error}\nIt was started again because: {failure}") from failure
