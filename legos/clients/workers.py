"""Several servers that do the same work, asked as one: judges of one model, or tools."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from legos.clients.health import healthy
from legos.clients.openai import OpenAIClient
from legos.clients.pool import ServerPool, all_done
from legos.clients.responses import decoded
from legos.clients.transport import Transport, server_name, server_root
from legos.errors import ConfigError, EndpointError, EngineError
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY

T = TypeVar("T")


class _Worker:
    """One server."""

    def __init__(self, url: str, client: OpenAIClient, tool: Transport) -> None:
        self.url, self.client, self.tool = url, client, tool

    @property
    def name(self) -> str:
        return server_name(self.url)

    async def healthy(self) -> bool:
        return await healthy(self.url, anything=True)


class Workers:
    """A pool of servers: the client of a seat that several judges play, and a place for tools.

    A request goes to the server with the fewest, in turn where they have as many. If one fails or
    stops answering, its requests go to others, and it is asked again once ``GET /health`` has an
    answer, be it 404. A server that works for longer than 2 s on everything that it has must answer
    that within 5 s meanwhile. If none is left, the request fails, and with it one play. A request
    must have no effect beyond its answer, because it may be sent twice.
    """

    def __init__(
        self,
        *urls: str,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = 600.0,
        retries: int = 1,
    ) -> None:
        """Make a pool; nothing is sent yet.

        Args:
            urls: addresses of the servers, such as ``http://localhost:8000``.
            api_key: sent as a bearer token to all.
            model: name of the model that judges; None takes the first that a server lists, and
                ``policy`` at ours. A vLLM server with adapters needs the name.
            timeout_s: longest wait for one answer, seconds.
            retries: of a failed request at one server, before it goes to another.

        Raises:
            ConfigError: there is no address.
            RequestError: one is not an HTTP address.
        """
        if not urls:
            raise ConfigError("workers have no address; give at least one, or several")

        def worker(url: str) -> _Worker:
            limits: Any = {"timeout_s": timeout_s, "max_connections": 256, "retries": retries}
            return _Worker(
                url,
                OpenAIClient(url, api_key=api_key, model=model, **limits),
                Transport(server_root(url), api_key=api_key, **limits),
            )

        self._pool = ServerPool([worker(url) for url in urls])

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Sample one completion, as ``OpenAIClient`` does, at one of the servers.

        Raises:
            RequestError: a server refuses the request.
            EndpointError: no server answers.
        """
        return await self._ask(lambda one: one.client.complete(prompt, sampling, adapter=adapter))

    async def post(self, path: str, body: Any) -> Any:
        """Send JSON to one of the servers, and return the JSON that it answers.

        Args:
            path: such as ``/run``, below the server's address.
            body: what is sent.

        Raises:
            RequestError: a server refuses the request.
            EndpointError: no server answers, or not with JSON.
        """
        anything: Any = Any  # that JSON holds
        read = partial(decoded, kind=anything)
        return await self._ask(lambda one: one.tool.request("POST", path, read, json=body))

    async def aclose(self) -> None:
        """Close this event loop's connections, and check the servers no more."""
        self._pool.close()
        servers = self._pool.servers
        await all_done(each.aclose() for one in servers for each in (one.client, one.tool))

    async def _ask(self, request: Callable[[_Worker], Awaitable[T]]) -> T:
        try:
            return await self._pool.ask(request)
        except EngineError as error:  # of the pool: a play fails with its judge, and no run does
            raise EndpointError(str(error)) from error
