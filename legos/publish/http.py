"""Publish a new adapter to servers: one request each, confirmed with version and digest."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote, urlencode

import msgspec

from legos.clients.transport import Transport, server_root
from legos.errors import (
    AdapterError,
    EndpointError,
    EngineError,
    LegosError,
    NotFoundError,
    RequestError,
)
from legos.weights.adapter import Adapter, AdapterInfo, pack_adapter

__all__ = ["HttpPublisher", "http_publishers"]

SLOTS = 3  # newest adapters whose bytes are kept for servers that have not got them


class _Live(msgspec.Struct):
    """The adapter that a server reports as live."""

    version: int
    digest: str


class _Packed:
    """The bytes of the newest adapters, which are packed once for all servers."""

    def __init__(self) -> None:
        self._slots: dict[AdapterInfo, asyncio.Future[bytes]] = {}

    async def of(self, adapter: Adapter) -> bytes:
        """The bytes of an adapter."""
        info = adapter.info
        if info not in self._slots:
            loop = asyncio.get_running_loop()
            self._slots[info] = loop.run_in_executor(None, pack_adapter, adapter)
            if len(self._slots) > SLOTS:
                del self._slots[next(iter(self._slots))]
        return await asyncio.shield(self._slots[info])


class HttpPublisher:
    """Sends adapters to several servers (``legos serve``) at the same time.

    An adapter counts as live when every server has confirmed the version and digest that were sent.
    If one server fails, the others keep the new adapter. What is live is kept here, so that a
    server that has lost it gets it again (``load_again``).
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        retries: int = 4,
        packed: _Packed | None = None,
    ) -> None:
        """Make a publisher; nothing is sent yet.

        Args:
            urls: address of one server or several, such as ``http://localhost:8000``.
            api_key: bearer token for all servers.
            timeout_s: maximum time to wait for one response, seconds.
            retries: maximum number of retries of a failed request.
            packed: shared with publishers to other servers.

        Raises:
            RequestError: an address is not an HTTP address.
        """
        self._packed = packed or _Packed()
        given = [urls] if isinstance(urls, str) else list(urls)
        self._live: dict[str, Adapter] = {}
        self._loading = asyncio.Lock()
        self._servers = [
            Transport(
                server_root(url),
                api_key=api_key,
                timeout_s=timeout_s,
                max_connections=2,
                retries=retries,
            )
            for url in given
        ]

    @property
    def versions(self) -> Mapping[str, int]:
        """Name of each adapter that is live on every server -> its version."""
        return {name: adapter.version for name, adapter in self._live.items()}

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Send the adapter; return once it is live on every server.

        Raises:
            AdapterError: a server rejects it; the adapter that was live there stays.
            EngineError: a server cannot be reached, or has another adapter live afterwards.
        """
        info = adapter.info
        body = await self._packed.of(adapter)
        async with self._loading:
            await self._send_all(info, body)
            self._live[info.name] = adapter
        return info

    async def drop(self, name: str) -> None:
        """Drop an adapter on every server; running requests finish with it.

        A server that has lost an adapter of this publisher has dropped it.

        Raises:
            AdapterError: no adapter of that name is live on a server.
            EngineError: a server cannot be reached.
        """
        async with self._loading:
            known = self._live.pop(name, None) is not None
            await self._each(lambda server: _drop(server, name, known=known))

    async def load_again(self) -> None:
        """Send what is live again, because a server was started again and has lost it.

        Raises:
            AdapterError: a server rejects an adapter.
            EngineError: a server cannot be reached, or has another adapter live afterwards.
        """
        async with self._loading:
            for adapter in self._live.values():
                await self._send_all(adapter.info, await self._packed.of(adapter))

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        for server in self._servers:
            await server.aclose()

    async def _send_all(self, info: AdapterInfo, body: bytes) -> None:
        await self._each(lambda server: _send(server, info, body))

    async def _each(self, call: Callable[[Transport], Awaitable[None]]) -> None:
        """Call all servers at the same time; raises the first error after all have ended."""
        answers = await asyncio.gather(
            *(call(server) for server in self._servers), return_exceptions=True
        )
        failures = [answer for answer in answers if answer is not None]
        for failure in failures:
            if len(failures) > 1 and isinstance(failure, LegosError):
                failure.add_note(f"{len(failures)} of {len(answers)} servers failed")
            raise failure


def http_publishers(
    urls: Sequence[str], *, api_key: str | None = None, retries: int = 4
) -> list[HttpPublisher]:
    """A publisher for each of several servers that share the work (``legos serve``).

    Args:
        urls: their addresses.
        api_key: bearer token.
        retries: maximum number of retries of a failed request.

    Returns:
        [servers] publishers, which pack each adapter once.

    Raises:
        RequestError: an address is not an HTTP address.
    """
    packed = _Packed()
    return [HttpPublisher(url, api_key=api_key, retries=retries, packed=packed) for url in urls]


async def _drop(server: Transport, name: str, *, known: bool) -> None:
    """Drop an adapter; one that is known may be gone, also by an answer that did not arrive."""
    try:
        await server.request("DELETE", f"/adapters/{quote(name)}", bytes)
    except EndpointError as error:
        raise EngineError(str(error)) from error
    except RequestError as error:
        if known and isinstance(error, NotFoundError):
            return
        raise AdapterError(f"adapter {name!r} is not dropped: {error}") from error


async def _send(server: Transport, info: AdapterInfo, body: bytes) -> None:
    path = "/adapters/load?" + urlencode({"name": info.name, "version": info.version})
    try:
        live = await server.request(
            "POST",
            path,
            msgspec.json.Decoder(_Live).decode,
            content=body,
            headers={"content-type": "application/octet-stream"},
        )
    except EndpointError as error:  # without the policy's server the run must end
        raise EngineError(str(error)) from error
    except RequestError as error:
        raise AdapterError(
            f"adapter {info.name}@{info.version} is not published: {error}"
        ) from error
    except msgspec.MsgspecError as error:
        raise EngineError(f"{server.url} acknowledges no version and digest: {error}") from error
    if (live.version, live.digest) != (info.version, info.digest):
        raise EngineError(
            f"{info.name}@{info.version} with digest {info.digest} was sent to {server.url}, but "
            f"version {live.version} with digest {live.digest} is live there"
        )
