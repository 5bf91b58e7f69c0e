"""The client of a model over HTTP: our server, vLLM, or any OpenAI-compatible endpoint."""

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from legos.clients.answers import (
    completion_of,
    dialect_of,
    listed_models,
)
from legos.clients.requests import Dialect, Target, request_of, split_adapter
from legos.clients.transport import Transport, api_root
from legos.errors import AdapterError, NotFoundError, RequestError
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import BASE, POLICY

logger = logging.getLogger(__name__)
_LIMIT = "max_completion_tokens"
_DROPPED = {
    name: re.compile(rf"refuses the request .*[^\w-]{named}(?![\w-])", re.DOTALL)
    for name, named in (("max_tokens", _LIMIT), ("seed", "seed"))
}
"""Fields that some servers refuse, with messages that name a field."""


class OpenAIClient:
    """A client of a server.

    Before the first request it asks the server for its kind (``GET /models``):

    - ours (``legos serve``): tokens, log-probabilities and versions are the server's own, and the
      default adapter, ``policy``, stands for ``model`` where that is given;
    - any other endpoint: text alone, so such a completion is never trained on. An adapter is asked
      for by its name where the server lists it, as vLLM does; the default name, ``policy``, stands
      for ``model``, or for the only model there, where vLLM does not list it. (``legos train
      --server`` trains with vLLM.) Where it refuses a seed, it gets none.

    Use it as an asynchronous context manager, or close it with ``aclose`` in the event loop that
    made the requests.

    Attributes:
        base_url: address of the server, as it was given.
        api_key: sent as a bearer token.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = 600.0,
        max_connections: int = 256,
        retries: int = 4,
        dialect: Dialect | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            base_url: such as ``http://localhost:8000/v1``; an address alone means its ``/v1``.
            api_key: sent as a bearer token.
            model: name of the model or adapter at the server; None takes the first that the server
                lists, and ``policy`` at ours.
            timeout_s: longest wait for one answer, seconds.
            max_connections: maximum number of simultaneous requests; others wait.
            retries: maximum number of retries of a failed request.
            dialect: the kind of server, for one that does not list its models.

        Raises:
            RequestError: the address is not an HTTP address.
        """
        self._transport = Transport(
            api_root(base_url),
            api_key=api_key,
            timeout_s=timeout_s,
            max_connections=max_connections,
            retries=retries,
        )
        self._model = model
        self._dialect: Dialect | None = dialect
        self._listed: tuple[str, ...] = ()
        self._warned = False  # that answers are not restricted
        self._refused = set[str]()  # fields that the server does not take
        self.base_url, self.api_key = base_url, api_key
        self._asking: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Sample one completion of chat messages, token ids or a continued conversation.

        At our server a conversation continues from its tokens, and only the new messages are
        rendered. Any other gets all messages, and its answers are not restricted to choices.

        Raises:
            RequestError: the server refuses the request, or does not support it.
            AdapterError: another adapter or version answered than was asked for.
            EndpointError: no server answers, or it answers with an error.
        """
        target = await self._target(adapter)
        if sampling.restrict and not target.ours:
            sampling = replace(sampling, restrict=False)
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s does not restrict answers to the legal ones, as only `legos serve` does; "
                    "an illegal answer counts as the arena says",
                    self._transport.url,
                )
        path, body = request_of(prompt, sampling, target)
        return await self._sent(
            path, body, partial(completion_of, sampling=sampling, target=target)
        )

    async def _sent(
        self, path: str, body: dict[str, Any], read: Callable[[bytes], Completion]
    ) -> Completion:
        """Send a request, and again without the fields of ``_DROPPED`` that the server refuses."""
        refused = set(self._refused)
        while True:
            for name in refused:
                value = body.pop(name, None)
                if name == "max_tokens" and value:
                    body[_LIMIT] = value
            try:
                found = await self._transport.request("POST", path, read, json=body)
            except RequestError as error:
                names = {n for n, told in _DROPPED.items() if n in body and told.search(f"{error}")}
                if self._dialect == "legos" or not names:
                    raise
                refused |= names
            else:
                self._refused |= refused
                return found

    async def models(self) -> tuple[str, ...]:
        """Names of the models and adapters of the server."""
        listed = await self._transport.request("GET", "/models", listed_models)
        return tuple(model.id for model in listed)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> "OpenAIClient":
        """Do nothing: connections are made when they are needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.aclose()

    async def _kind(self) -> Dialect:
        """The kind of server; requested once, together with the model's name."""
        if self._dialect is not None:
            return self._dialect
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking[0] is not loop:
            self._asking = loop, asyncio.Lock()
        async with self._asking[1]:
            if self._dialect is None:
                self._dialect = await self._find_out()
        return self._dialect

    async def _find_out(self) -> Dialect:
        try:
            listed = await self._transport.request("GET", "/models", listed_models)
        except RequestError as error:  # an endpoint without a list
            if self._model is None and not isinstance(error, NotFoundError):
                raise  # else the next request reports what it refuses
            return "openai"
        self._listed = tuple(model.id for model in listed)
        return dialect_of(listed)

    async def _target(self, adapter: str) -> Target:
        """The model at the server that answers for an adapter.

        Raises:
            AdapterError: vLLM does not serve the adapter.
            RequestError: the server lists no model, or does not know versions.
        """
        dialect = await self._kind()
        model = self._model or next(iter(self._listed), None)
        if dialect == "legos":
            name = self._model if self._model and adapter == POLICY else adapter
            return Target(dialect=dialect, adapter=name, model=name)
        if dialect == "vllm" and adapter not in (BASE, model):
            if adapter not in self._listed:
                self._listed = await self.models()  # it may have been loaded since
            if adapter in self._listed:
                model = adapter
            elif adapter != POLICY or (self._model is None and len(self._listed) > 1):
                raise AdapterError(
                    f"{self._transport.url} serves no adapter {adapter}, only "
                    f"{', '.join(self._listed)}; ask for one of these names, or for 'base'"
                )
        elif dialect == "openai" and split_adapter(adapter)[1] is not None:
            raise RequestError(
                f"adapter {adapter!r} asks for a version, which {self._transport.url} does not "
                "know; ask without one"
            )
        if model is None:
            raise RequestError(f"{self._transport.url} lists no model; give model=NAME")
        return Target(dialect=dialect, adapter=adapter, model=model)
