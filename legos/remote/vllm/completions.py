"""Bodies of vLLM's completion requests, and the tokens in its answers; no network here.

The prompts of several requests that differ in nothing else travel as one list. No seed is sent: all
prompts of a list share it, so equal prompts would get equal answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from legos.clients.requests import FILTERS
from legos.clients.responses import decoded
from legos.errors import EndpointError, RequestError
from legos.records.choices import walked
from legos.records.message import Filters, FinishReason
from legos.records.request import Generated, PlainRequest, Request

_SENT = (
    *("adapter", "max_tokens", "temperature", "end_ids", "stop", "filters"),
    *("num_alternatives", "json_schema"),
)
"""Fields of a request on which the answer of a server depends, besides its prompt."""
_REASONS: Mapping[str | None, FinishReason | None] = {
    "stop": "stop",
    "length": "length",
    "abort": None,
}
_TOKEN = "token_id:"


class Query(PlainRequest, frozen=True, kw_only=True):
    """What a request asks for, besides its prompt; equal queries can travel together."""

    prompt_ids: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()  # only these token ids can be sampled; (): all
    watched: tuple[int, ...] = ()  # token ids whose log-probabilities are wanted


class Sampled(Struct, frozen=True, kw_only=True):
    """The answer to one prompt, with N sampled tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # [N] nats, under the distribution sampled from
    others: tuple[Mapping[int, float], ...]  # [N] token id -> nats: what the query asks for
    finish_reason: FinishReason | None  # None: the server aborted it


class _Logprobs(Struct):
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None


class _Choice(Struct):
    index: int
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    choices: list[_Choice]


def query_of(request: Request) -> Query:
    """What to ask a server for a request that samples freely.

    Raises:
        RequestError: vLLM cannot do what is asked.
    """
    raw = request.raw_logprobs or request.num_alternatives
    limited = request.restrict or request.json_schema is not None
    if raw and (request.temperature != 1.0 or request.filters is not None or limited):
        raise RequestError(
            f"raw log-probabilities at temperature {request.temperature:g}, with filters or with "
            "legal answers need two numbers for each token, and a vLLM server reports one, of the "
            "distribution sampled from; leave logprobs out"
        )
    return Query(**{name: getattr(request, name) for name in _SENT})


def body_of(query: Query, prompts: Sequence[tuple[int, ...]], *, model: str) -> dict[str, Any]:
    """The body of ``POST /v1/completions``; every sampling parameter is stated.

    Args:
        query: what all prompts ask for.
        prompts: token ids of each prompt.
        model: name of the adapter at the server.
    """
    filters = query.filters or Filters()
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompts,
        "max_tokens": query.max_tokens,
        "temperature": query.temperature,
        **{name: getattr(filters, name) for name in FILTERS},
        "logprobs": query.num_alternatives,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "ignore_eos": True,  # the request's own end tokens are among stop_token_ids
        "stop_token_ids": query.end_ids,
    }
    if query.stop:
        body |= {"stop": query.stop, "include_stop_str_in_output": True}
    if filters.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in filters.logit_bias}
    if query.allowed:
        body["allowed_token_ids"] = query.allowed
    if query.json_schema is not None:
        body["structured_outputs"] = {"json": msgspec.json.decode(query.json_schema)}
    if query.watched:
        body["logprob_token_ids"] = query.watched
    return body


def sampled_of(answer: bytes, query: Query, count: int) -> list[Sampled]:
    """The answer to each prompt, in their order.

    Raises:
        EndpointError: the answer cannot be read, or lacks tokens or log-probabilities.
    """
    choices = decoded(answer, _Answer).choices
    by_index = {choice.index: choice for choice in choices}
    if sorted(by_index) != list(range(count)):
        raise EndpointError(f"the vLLM server answered {len(choices)} of {count} prompts")
    return [_sampled(by_index[index], query) for index in range(count)]


def _sampled(choice: _Choice, query: Query) -> Sampled:
    if choice.finish_reason not in _REASONS:
        raise EndpointError(f"a vLLM answer ended for the reason {choice.finish_reason!r}")
    reason = _REASONS[choice.finish_reason]
    ids, found = choice.token_ids, choice.logprobs
    if reason is None:
        return Sampled(token_ids=(), logprobs=(), others=(), finish_reason=None)
    logprobs = () if found is None else found.token_logprobs
    if not ids or len(logprobs) != len(ids) or None in logprobs:
        raise EndpointError(
            f"the vLLM server's answer has {len(ids or ())} token ids and {len(logprobs)} "
            "log-probabilities; expected one of each for every token, as from version 0.32 on"
        )
    exact = tuple(0.0 if query.temperature == 0.0 else value or 0.0 for value in logprobs)
    tops = (found.top_logprobs if found else None) or ()
    wanted = bool(query.watched or query.num_alternatives)
    others = tuple(_by_token(top or {}) for top in tops) if wanted else ()
    watched = {*query.watched}
    whole = len(others) == len(ids) and all(other.keys() >= watched for other in others)
    if wanted and not whole:
        raise EndpointError(
            "the vLLM server's answer lacks log-probabilities of tokens asked for (logprobs, "
            "logprob_token_ids), which it reports from version 0.32 on"
        )
    allowed = {*(query.allowed or ids)}
    strange = [f"token {token}, which is not" for token in ids if token not in allowed]
    if len(ids) > query.max_tokens:
        strange.append(f"{len(ids)} tokens, which are not")
    if strange:
        raise EndpointError(
            f"the vLLM server's answer has {strange[0]} allowed (allowed_token_ids, max_tokens "
            f"{query.max_tokens})"
        )
    return Sampled(token_ids=ids, logprobs=exact, others=others, finish_reason=reason)


def _by_token(top: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(name.removeprefix(_TOKEN)): value for name, value in top.items()}
    except ValueError as error:
        raise EndpointError(
            f"the vLLM server's answer names the tokens {list(top)!r:.200}; expected their ids, "
            f"as {_TOKEN}7"
        ) from error


def generated_of(sampled: Sampled, request: Request, *, version: int) -> Generated:
    """The completion of a request, cut where a choice is complete or a stop text ends.

    The server ends a completion at the end tokens, the stop texts and the token limit. The tokens
    after a complete choice were sampled later and change nothing before them.
    """
    token_ids, reason = sampled.token_ids, sampled.finish_reason or "stop"
    legal, end = walked(request.choices, token_ids) if request.choices else ((), None)
    if end is None and request.stops is not None:
        ends = range(1, len(token_ids) + 1)
        end = next((end for end in ends if request.stops(token_ids[:end])), None)
    if end is not None:
        token_ids, reason = token_ids[:end], "stop"
    count = len(token_ids)
    return Generated(
        token_ids=token_ids,
        logprobs=sampled.logprobs[:count],
        versions=(version,) * count,
        raw_logprobs=sampled.logprobs[:count] if request.raw_logprobs else (),
        alternatives=tuple(
            tuple(sorted(others.items(), key=lambda pair: -pair[1])[: request.num_alternatives])
            for others in sampled.others[:count]
        )
        if request.num_alternatives
        else (),
        legal=legal[:count],
        finish_reason=reason,
    )
