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
from legos.remote.publish.carriers import Carrier, Content, InRequests
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["HttpPublisher", "http_publishers"]


class _Live(msgspec.Struct):
    """The adapter that a server reports as live."""

    version: int
    digest: str


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
        carrier: Carrier | None = None,
    ) -> None:
        """Make a publisher; nothing is sent yet.

        Args:
            urls: address of one server or several, such as ``http://localhost:8000``.
            api_key: bearer token for all servers.
            timeout_s: maximum time to wait for one response, seconds.
            retries: maximum number of retries of a failed request.
            carrier: brings adapters to the servers, and to those of other publishers; None: each
                request has the bytes.

        Raises:
            RequestError: an address is not an HTTP address.
        """
        self._carrier = carrier or InRequests()
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
                model="",
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
            EngineError: a server cannot be reached, has another adapter live afterwards, or another
                model than before.
        """
        async with self._loading, self._carrier.carried(adapter) as content:
            await self._send_all(adapter.info, content)
            self._live[adapter.name] = adapter
        return adapter.info

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
                async with self._carrier.carried(adapter) as content:
                    await self._send_all(adapter.info, content)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        for server in self._servers:
            await server.aclose()

    async def _send_all(self, info: AdapterInfo, content: Content) -> None:
        await self._each(lambda server: _send(server, info, content))

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
    urls: Sequence[str],
    *,
    api_key: str | None = None,
    retries: int = 4,
    carrier: Carrier | None = None,
) -> list[HttpPublisher]:
    """A publisher for each of several servers that share the work (``legos serve``).

    Args:
        urls: their addresses.
        api_key: bearer token.
        retries: maximum number of retries of a failed request.
        carrier: brings adapters to the servers; None: each request has the bytes.

    Returns:
        [servers] publishers, for which each adapter is prepared once.

    Raises:
        RequestError: an address is not an HTTP address.
    """
    shared = carrier or InRequests()
    return [HttpPublisher(url, api_key=api_key, retries=retries, carrier=shared) for url in urls]


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


async def _send(server: Transport, info: AdapterInfo, content: Content) -> None:
    path = "/adapters/load?" + urlencode({"name": info.name, "version": info.version})
    try:
        live = await server.request(
            "POST",
            path,
            msgspec.json.Decoder(_Live).decode,
            content=content.body,
            headers={"content-type": content.kind},
        )
    except EndpointError as error:  # without the policy's server the run must end
        raise EngineError(str(error)) from error
    except NotFoundError as error:  # a file system may show a new folder late
        raise EngineError(
            f"{server.url} does not see {info.name}@{info.version}: {error}; its --adapter-folder "
            "must be the adapter_folder of this run"
        ) from error
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
