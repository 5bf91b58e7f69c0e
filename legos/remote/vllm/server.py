"""One vLLM server as a part of an engine: token ids go there in lists, and answers come back."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from legos.clients.health import healthy
from legos.clients.lists import RequestLists
from legos.clients.transport import CONNECTIONS, Transport, api_root, server_name
from legos.errors import EngineError, NotFoundError, RequestError
from legos.records.message import ScoredRows
from legos.records.request import Generated, Request
from legos.remote.vllm.completions import (
    Query,
    Sampled,
    body_of,
    generated_of,
    query_of,
    sampled_of,
)
from legos.remote.vllm.publisher import VllmPublisher
from legos.remote.vllm.scores import score_prompts

REQUEST_S = 3600.0  # maximum time of one answer, which then fails one play
RETRIES = 4  # of a failed request
MOST_ABORTS, ABORTED_S = 20, 0.5  # how often a prompt is asked again, and the pause before
_Prompt = tuple[int, ...]
_Answer = tuple[Sampled, int]
"""What was sampled, and the version of the adapter that sampled it."""


class VllmServer:
    """Implements ``legos.remote.engine.RemoteServer``; it belongs to one event loop.

    Differences from an engine in this process: seeds have no effect, and a running request keeps
    the adapter that it began with.
    """

    def __init__(self, publisher: VllmPublisher, *, api_key: str | None = None) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            publisher: loads adapters there.
            api_key: bearer token.
        """
        self._publisher, self._url = publisher, publisher.api.url
        self._transport = Transport(
            api_root(self._url),
            api_key=api_key,
            timeout_s=REQUEST_S,
            max_connections=CONNECTIONS,
            retries=RETRIES,
            slow=RequestError,
        )
        self._lists = RequestLists(self._sampled)

    async def answer(self, requests: Sequence[Request]) -> Sequence[Generated | RequestError]:
        """Sample completions; see ``RemoteServer``."""
        return await asyncio.gather(*map(self._answered, requests))

    async def _answered(self, request: Request) -> Generated | RequestError:
        try:
            query = query_of(request)
            if request.restrict:
                return await self._restricted(query, request)
            sampled, version = await self._ask(query, request.prompt_ids)
            return generated_of(sampled, request, version=version)
        except RequestError as error:
            return error

    async def score(
        self, prompts: ScoredRows, *, end_ids: Sequence[int], adapter: str, by_token: bool = False
    ) -> list[list[float]]:
        """Log-probability of each continuation, nats; see ``Engine.score``.

        Raises:
            RequestError: the server refuses it, or tokens are to be scored.
        """
        if by_token:
            raise RequestError(
                f"the vLLM server at {self._url} cannot score by token: with --enable-lora vLLM's "
                "prompt_logprobs are wrong or end its engine"
            )

        async def ask(query: Query, prompt: _Prompt) -> Mapping[int, float]:
            return (await self._ask(query, prompt))[0].others[0]

        return await score_prompts(prompts, end_ids=end_ids, adapter=adapter, ask=ask)

    @property
    def name(self) -> str:
        """Its host and port."""
        return server_name(self._url)

    async def healthy(self) -> bool:
        """Whether it answers within some seconds; see ``Pooled``."""
        return await healthy(self._url)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _ask(self, query: Query, prompt: _Prompt) -> _Answer:
        """The answer to one prompt, which travels with the others of this turn.

        Raises:
            RequestError: the server refuses it.
            EngineError: the server fails, or keeps aborting it.
        """
        for _ in range(MOST_ABORTS):
            sampled, version = await self._lists.ask(query, prompt, max_tokens=query.max_tokens)
            if sampled.finish_reason is not None:
                return sampled, version
            await asyncio.sleep(ABORTED_S)
        raise EngineError(f"the vLLM server aborted a request {MOST_ABORTS} times in a row")

    async def _sampled(self, query: Query, prompts: Sequence[_Prompt]) -> list[_Answer]:
        """The answers to a list.

        Raises:
            RequestError: the server refuses the list, or no such adapter is live.
            EngineError: the server fails, or has lost the adapter and does not take it again.
        """
        read = partial(sampled_of, query=query, count=len(prompts))
        with self._publisher.live.use(query.adapter) as served, self._publisher.failures():
            body = body_of(query, prompts, model=served.model)
            ask = partial(self._transport.request, "POST", "/completions", read, json=body)
            try:
                found = await ask()
            except NotFoundError:  # it was started again
                await self._publisher.restore(served)
                found = await ask()
            return [(sampled, served.version) for sampled in found]

    async def _restricted(self, query: Query, request: Request) -> Generated:
        """Sample legal tokens only, one request for each that is the first or has alternatives."""
        node = request.choices
        token_ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        legal: list[_Prompt] = []
        while node is not None and node.children and len(token_ids) < request.max_tokens:
            legal.append(node.legal)
            if versions and len(node.legal) == 1:  # whose probability is 1
                logprobs.append(0.0)
                versions.append(versions[-1])
                token_ids += node.legal
            else:
                one = replace(query, max_tokens=1, allowed=node.legal)
                sampled, version = await self._ask(one, request.prompt_ids + tuple(token_ids))
                logprobs += sampled.logprobs
                versions.append(version)
                token_ids += sampled.token_ids
            node = node.children.get(token_ids[-1])
        closed = node is None or not node.children
        return Generated(
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            versions=tuple(versions),
            legal=tuple(legal),
            finish_reason="stop" if closed else "length",
        )
