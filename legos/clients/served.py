"""A server of ours (``legos serve``), asked with lists of token ids."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from legos.clients.answers import generated_of, scores_of
from legos.clients.lists import RequestLists
from legos.clients.requests import filter_fields
from legos.clients.transport import Transport, api_root
from legos.data.message import Filters
from legos.data.request import Generated, Request

__all__ = ["LegosServer"]

REQUEST_S = 600.0  # maximum time of one answer
CONNECTIONS = 256
RETRIES = 10  # of a failed request, which take about two minutes
SCORED = 256  # prompts of one request for scores
_Row = tuple[int, ...]


class _Query(Struct, frozen=True, kw_only=True):
    """What a request asks for, besides its prompt and its seed."""

    adapter: str
    max_tokens: int
    temperature: float
    end_ids: _Row
    choices: tuple[str, ...]
    restrict: bool
    stop: tuple[str, ...]
    filters: Filters | None
    json_schema: str | None
    num_alternatives: int
    raw_logprobs: bool


class LegosServer:
    """Implements ``legos.clients.remote.RemoteServer``; it belongs to one event loop.

    The server's tokenizer must be that of the caller: choices, stop texts and JSON schemas travel
    as texts.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            url: its address.
            api_key: bearer token.
        """
        self._transport = Transport(
            api_root(url),
            api_key=api_key,
            timeout_s=REQUEST_S,
            max_connections=CONNECTIONS,
            retries=RETRIES,
        )
        self._lists = RequestLists(self._sampled)

    async def answer(self, request: Request) -> Generated:
        """Sample one completion; see ``RemoteServer``."""
        query = _Query(
            adapter=request.adapter,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            end_ids=request.end_ids,
            choices=request.choice_texts,
            restrict=request.restrict,
            stop=request.stop,
            filters=request.filters,
            json_schema=request.json_schema,
            num_alternatives=request.num_alternatives,
            raw_logprobs=request.raw_logprobs,
        )
        return await self._lists.ask(query, (request.prompt_ids, request.seed))

    async def score(
        self,
        prompts: Sequence[tuple[_Row, Sequence[_Row]]],
        *,
        end_ids: Sequence[int],
        adapter: str,
    ) -> list[list[float]]:
        """Log-probability of each continuation as the complete answer to its prompt, nats."""
        scores: list[list[float]] = []
        for start in range(0, len(prompts), SCORED):
            asked = [
                {"prompt": prompt, "choices": answers}
                for prompt, answers in prompts[start : start + SCORED]
            ]
            body = {"prompts": asked, "model": adapter, "end_token_ids": end_ids}
            scores += await self._transport.request("POST", "/score", scores_of, json=body)
        return scores

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _sampled(
        self, query: _Query, asked: Sequence[tuple[_Row, int]]
    ) -> Sequence[Generated]:
        """The answers to a list of prompts with their seeds."""
        body = _body(query, asked)

        def read(answer: bytes) -> Sequence[Generated]:
            return generated_of(answer, query.adapter, len(asked))

        return await self._transport.request("POST", "/completions", read, json=body)


def _body(query: _Query, asked: Sequence[tuple[_Row, int]]) -> dict[str, Any]:
    """The body of ``POST /v1/completions``."""
    body: dict[str, Any] = {
        "model": query.adapter,
        "prompt": [prompt for prompt, _ in asked],
        "seeds": [seed for _, seed in asked],
        "max_tokens": query.max_tokens,
        "temperature": query.temperature,
        "stop_token_ids": query.end_ids,
        # The model's end tokens are among the others if they end the answer; choices need them.
        "ignore_eos": not query.choices and query.json_schema is None,
        "return_token_ids": True,
        **filter_fields(query.filters, query.json_schema),
    }
    if query.choices:
        body |= {"choices": query.choices, "restrict": query.restrict}
    if query.stop:
        body["stop"] = query.stop
    if query.num_alternatives:
        body["logprobs"] = query.num_alternatives
    if query.raw_logprobs:
        body["raw_logprobs"] = True
    return body
