"""Servers (``legos serve``) on a Ray cluster: Ray places them, and starts again those that end.

Requests and adapters go to a server over HTTP, as to any other. When it ends, its actor ends too,
and Ray starts both again, maybe on another node: the trainer loads the adapters into the new server
before anybody else gets its address.
"""

import asyncio
import logging
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from legos.errors import LegosError
from legos.remote.legos_server import LegosServer
from legos.remote.process import ServerProcess
from legos.remote.ray.kit import check_kit
from legos.remote.ray.library import RayError, cause_of, first_line, ray

logger = logging.getLogger(__name__)

RETRIES = 26  # of a request, in about ten minutes: a server that is started again loads its model
ANSWER_S = 5.0  # how long the actor may take to answer where its server is
RELOAD_S = 300.0  # maximum time to load the adapters, after which its address is looked up again
CHECK_S = 1.0  # pause between two checks whether a server was started again


class ServerActor:
    """Runs ``legos serve`` on its node; the methods are those of a Ray actor."""

    def __init__(
        self,
        kit: str,
        api_key: str,
        command: Callable[[], Sequence[str]],
        environment: Callable[[], Mapping[str, str]],
    ) -> None:
        """Start nothing yet, so that an error of ``prepare`` reaches who asked for it.

        Args:
            kit: ``kit_digest`` of the run.
            api_key: key that the server asks for.
            command: returns the command line of the server on this node, without its address.
            environment: returns the server's environment on this node.
        """
        self._kit, self._api_key = kit, api_key
        self._command, self._environment = command, environment
        self._starting = asyncio.Lock()
        self._opened = asyncio.Event()
        self._server: ServerProcess | None = None

    async def prepare(self) -> str:
        """Start the server if there is none; returns its address, where it answers.

        Raises:
            ConfigError: this node has another version of legos.
            EngineError: the server does not start; the message shows the end of its log.
        """
        async with self._starting:
            if self._server is None:
                check_kit(self._kit)
                self._server = await asyncio.to_thread(self._start)
        return self._server.url

    async def open(self) -> None:
        """Tell others the address: the server has the adapters of the run."""
        self._opened.set()

    async def address(self) -> str:
        """The server's address, once it has the adapters of the run."""
        await self._opened.wait()
        return await self.prepare()

    async def lacks_adapters(self) -> bool:
        """Whether the server was started and has not got the adapters of the run."""
        await self.prepare()
        return not self._opened.is_set()

    def _start(self) -> ServerProcess:
        host = ray.util.get_node_ip_address()
        server = ServerProcess(
            lambda port: [*self._command(), "--host", host, "--port", str(port)],
            log=Path(tempfile.mkdtemp(prefix="legos-ray-")) / "serve.log",
            host=host,
            program="legos serve",
            environment={**self._environment(), "LEGOS_API_KEY": self._api_key},
        )
        try:
            server.start()
            server.wait()
        except BaseException:
            server.close()
            raise
        threading.Thread(target=_end_with, args=(server,), daemon=True).start()
        return server


class PlacedServer:
    """A server on the cluster; a ``LegosServer`` whose address may change.

    Where it does not answer, its actor is asked where it is now.

    Attributes:
        place: name of its Ray actor.
        actor: the Ray actor, a ``ServerActor``.
        api_key: the server's key.
    """

    def __init__(self, place: str, url: str, *, api_key: str) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            place: name of its Ray actor, a ``ServerActor``.
            url: its address now.
            api_key: bearer token.
        """
        self.place, self.actor, self.api_key = place, ray.get_actor(place), api_key
        self._server = server = LegosServer(
            url, api_key=api_key, retries=RETRIES, load_retries=RETRIES
        )
        self.answer, self.score, self.aclose = server.answer, server.score, server.aclose
        self.publish, self.drop = server.publish, server.drop

    @property
    def name(self) -> str:
        """Its host and port."""
        return self._server.name

    async def healthy(self) -> bool:
        """Whether it answers within some seconds, also at a new address."""
        try:
            async with asyncio.timeout(ANSWER_S):
                self._server.move(await self.actor.address.remote())
        except (RayError, TimeoutError):
            return False
        return await self._server.healthy()

    async def keep_loaded(self, reload: Callable[[], Awaitable[None]]) -> NoReturn:
        """Load the adapters again whenever Ray has started the server again.

        Args:
            reload: loads all of them (``Broadcaster.reload``).
        """
        while True:
            try:
                if await self.actor.lacks_adapters.remote():
                    self._server.move(await self.actor.prepare.remote())
                    async with asyncio.timeout(RELOAD_S):
                        await reload()
                    await self.actor.open.remote()
            except (RayError, LegosError, TimeoutError) as error:
                logger.warning("%s on Ray: %s", self.name, first_line(cause_of(error)))
            await asyncio.sleep(CHECK_S)


def _end_with(server: ServerProcess) -> None:
    """End this process when its server ends, so that Ray starts both again."""
    server.join()
    os._exit(1)
