"""Bring a server back after a failure, once for all requests that met it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from legos.errors import EndpointError, EngineError

__all__ = ["Mend", "Recovery"]

T = TypeVar("T")
Mend = Callable[[Exception], Awaitable[None]]
"""Makes a server answer again, with all adapters that it must have.

It raises ``EngineError`` if the server does not come back; nothing is sent to it any more.
"""


class Recovery:
    """Knows how often a server was brought back; all methods belong to one event loop.

    Attributes:
        epoch: number of times that the server has been brought back.
    """

    def __init__(self, mend: Mend | None = None) -> None:
        """Start without a failure.

        Args:
            mend: brings the server back; None: a failure ends the run, until ``on_failure``.
        """
        self.epoch = 0
        self._mend = mend
        self._mending = asyncio.Lock()
        self._given_up: EngineError | None = None

    def on_failure(self, mend: Mend) -> None:
        """Set what brings the server back."""
        self._mend = mend

    async def persist(
        self, send: Callable[[], Awaitable[T]], *, mended: type[Exception] = EndpointError
    ) -> T:
        """Send a request, and again whenever the server has come back from a failure.

        Args:
            send: sends it.
            mended: errors of ``send`` after which the server is brought back.

        Raises:
            EngineError: the server does not come back; the run ends.
        """
        while True:
            epoch = self.epoch
            try:
                return await send()
            except mended as error:
                failure = error
            await self.after(failure, epoch)

    async def after(self, failure: Exception, epoch: int) -> None:
        """Return once the server answers again.

        Args:
            failure: how the server failed a request.
            epoch: the epoch in which the request was sent. If it has passed, the server has been
                brought back already, and this returns at once.

        Raises:
            EngineError: the server does not come back; the run ends.
        """
        async with self._mending:
            if epoch != self.epoch:
                return
            if self._mend is None:
                raise EngineError(str(failure)) from failure
            if self._given_up is None:
                try:
                    await self._mend(failure)
                except EngineError as error:
                    self._given_up = error
            if self._given_up is not None:
                raise self._given_up
            self.epoch += 1
