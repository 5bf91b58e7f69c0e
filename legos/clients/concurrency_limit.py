"""How many requests are sent to a server at once: no more than it admits."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter

__all__ = ["ConcurrencyLimit"]

GROW_S = 10.0  # time without a refusal after which more requests at once are tried


class ConcurrencyLimit:
    """Admits requests, the first ones first; all methods belong to one event loop.

    Each refusal (status 429) lowers the number of simultaneous requests to those that the server
    has not refused, and after ten seconds without one it grows by a quarter.
    """

    def __init__(self, most: int) -> None:
        """Admit requests.

        Args:
            most: maximum number of simultaneous requests.
        """
        self._most = most
        self._limiter = CapacityLimiter(most)
        self._changed = 0.0  # when the number was changed last, seconds

    @property
    def limit(self) -> int:
        """Maximum number of simultaneous requests now."""
        return int(self._limiter.total_tokens)

    @asynccontextmanager
    async def admitted(self) -> AsyncGenerator[None]:
        """Within the block, one request is admitted."""
        request = object()
        await self._limiter.acquire_on_behalf_of(request)
        try:
            yield
        finally:
            self._limiter.release_on_behalf_of(request)

    def refused(self) -> None:
        """Report that the server has refused a request because it has too many."""
        self._change(min(self.limit, self._limiter.borrowed_tokens) - 1)

    def answered(self) -> None:
        """Report that the server has answered a request."""
        if self.limit < self._most and _now() - self._changed >= GROW_S:
            self._change(self.limit + max(1, self.limit // 4))

    def _change(self, limit: int) -> None:
        self._limiter.total_tokens = min(max(limit, 1), self._most)
        self._changed = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
