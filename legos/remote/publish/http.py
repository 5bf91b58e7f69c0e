"""Publish a new adapter to a server: one request, confirmed with version and digest."""

import asyncio
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote, urlencode

import msgspec

from legos.clients.transport import Transport, decoded, server_root
from legos.errors import AdapterError, EndpointError, EngineError, NotFoundError, RequestError
from legos.remote.publish.carriers import Carrier
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["HttpPublisher"]


class _Live(msgspec.Struct):
    """The adapter that a server reports as live."""

    version: int
    digest: str


class HttpPublisher:
    """Sends adapters to one server (``legos serve``).

    An adapter counts as live when the server has confirmed the version and digest that were sent.
    What is live is kept here, so that a server that has lost it gets it again (``load_again``).
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        retries: int = 4,
        carrier: Carrier | None = None,
    ) -> None:
        """Make a publisher; nothing is sent yet.

        Args:
            url: address of the server, such as ``http://localhost:8000``.
            api_key: bearer token.
            timeout_s: maximum time to wait for one response, seconds.
            retries: maximum number of retries of a failed request.
            carrier: brings adapters to this server, and to those of other publishers; None: each
                request has the bytes.

        Raises:
            RequestError: the address is not an HTTP address.
        """
        self._carrier = carrier or Carrier()
        self._live: dict[str, Adapter] = {}
        self._loading = asyncio.Lock()
        self._server = Transport(
            server_root(url),
            api_key=api_key,
            timeout_s=timeout_s,
            max_connections=2,
            retries=retries,
            model="",
        )

    @property
    def versions(self) -> Mapping[str, int]:
        """Name of each adapter that is live on the server -> its version."""
        return {name: adapter.version for name, adapter in self._live.items()}

    def move(self, url: str) -> None:
        """Send to another address, where the server was started again."""
        self._server.move(server_root(url))

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; return once it is live.

        Raises:
            AdapterError: the server rejects it; the adapter that was live there stays.
            EngineError: the server cannot be reached, has another adapter live afterwards, or
                another model than before.
        """
        async with self._loading:
            await self._load(adapter)
            self._live[adapter.name] = adapter
        return adapter.info

    async def drop(self, name: str) -> None:
        """Drop an adapter; running requests finish with it.

        A server that has lost an adapter of this publisher has dropped it.

        Raises:
            AdapterError: no adapter of that name is live.
            EngineError: the server cannot be reached.
        """
        async with self._loading:
            known = self._live.pop(name, None) is not None
            try:
                await self._server.request("DELETE", f"/adapters/{quote(name)}", bytes)
            except EndpointError as error:
                raise EngineError(str(error)) from error
            except RequestError as error:
                if not (known and isinstance(error, NotFoundError)):  # dropped before, unheard
                    raise AdapterError(f"adapter {name!r} is not dropped: {error}") from error

    async def load_again(self) -> None:
        """Send what is live again, because the server was started again and has lost it.

        Raises:
            AdapterError: the server rejects an adapter.
            EngineError: the server cannot be reached, or has another adapter live afterwards.
        """
        async with self._loading:
            for adapter in self._live.values():
                await self._load(adapter)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._server.aclose()

    async def _load(self, adapter: Adapter) -> None:
        info, server = adapter.info, self._server
        path = "/adapters/load?" + urlencode({"name": info.name, "version": info.version})
        try:
            async with self._carrier.carried(adapter) as content:
                live = await server.request(
                    "POST",
                    path,
                    partial(decoded, kind=_Live),
                    content=content.body,
                    headers={"content-type": content.kind},
                )
        except EndpointError as error:  # without the policy's server the run must end
            raise EngineError(str(error)) from error
        except NotFoundError as error:  # a file system may show a new folder late
            raise EngineError(
                f"{server.url} does not see {info.name}@{info.version}: {error}; its "
                "--adapter-folder must be the adapter_folder of this run"
            ) from error
        except RequestError as error:
            raise AdapterError(
                f"adapter {info.name}@{info.version} is not published: {error}"
            ) from error
        if (live.version, live.digest) != (info.version, info.digest):
            raise EngineError(
                f"{info.name}@{info.version} with digest {info.digest} was sent to {server.url}, "
                f"but version {live.version} with digest {live.digest} is live there"
            )
