"""Serves the seats of running plays to other programs, while there are any."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager

from fastapi import FastAPI

from legos.errors import ArenaError
from legos.play.endpoint import AgentSeat, Endpoint
from legos.play.external_episode import ExternalEpisode
from legos.server.listen import bind, serve_app
from legos.server.matches import MatchQueue

HOST = "127.0.0.1"


class SeatHost:
    """Opens seats to other programs at an address of this machine, while there are any."""

    def __init__(self, matches: MatchQueue, app: Callable[[], FastAPI]) -> None:
        """Prepare to serve.

        Args:
            matches: plays that another server offers; it has the keys that the application accepts.
            app: makes the application; called for each server, since one that ends rejects
                requests from then on.
        """
        self.matches = matches
        self._make_app = app
        self._server: _Server | None = None

    @asynccontextmanager
    async def open(self, seat: AgentSeat) -> AsyncGenerator[Endpoint]:
        """Within the block, requests with the endpoint's key are answered by this seat."""
        if self._server is None or not self._server.usable:
            self._server = _Server(self._make_app())
        server = self._server
        server.num_seats += 1
        try:
            url = await asyncio.shield(server.url)
            with self.matches.keys.given_to(seat) as key:
                yield Endpoint(base_url=f"{url}/v1", api_key=key)
        finally:
            server.num_seats -= 1
            if not server.num_seats:
                self._server = None
                await server.close()

    def offered(self, offer: ExternalEpisode) -> AbstractContextManager[None]:
        """Within the block, a program can start the play of the offer.

        Raises:
            ArenaError: no server offers plays.
        """
        if not self.matches.serving:
            raise ArenaError(
                "this play waits for a program, but the run has no server where one could start "
                "it; give --serve PORT"
            )
        return self.matches.offered(offer)


class _Server:
    """A running server; several plays use it, so it has a task of its own.

    Attributes:
        url: its address.
        num_seats: number of seats that it serves.
    """

    def __init__(self, app: FastAPI) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.url: asyncio.Future[str] = self._loop.create_future()
        self.num_seats = 0
        self._task = self._loop.create_task(self._serve(app))

    @property
    def usable(self) -> bool:
        """Whether it runs on the running event loop."""
        return self._loop is asyncio.get_running_loop()

    async def close(self) -> None:
        """End the server, also if the play that closes it is cancelled meanwhile."""
        self._ended.set()
        await asyncio.wait([self._task])

    async def _serve(self, app: FastAPI) -> None:
        try:
            async with serve_app(app, bind(HOST, 0), drain_s=0) as url:
                self.url.set_result(url)
                await self._ended.wait()
        except Exception as error:
            if self.url.done():
                raise
            self.url.set_exception(error)  # raised in the plays that wait for the address
