"""The tokens of an answer in the format of OpenAI's API: log-probabilities, texts and ids."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from legos.data.message import Completion, Tokens
from legos.server.schemas.sampling import SamplingFields

__all__ = ["TokenText", "chat_logprobs", "text_logprobs", "token_fields"]

_BROKEN = "\ufffd"


TokenText = Callable[[int], str]
"""Token id -> its text; an incomplete character becomes the replacement character."""


def chat_logprobs(sampled: Tokens, text_of: TokenText, *, raw: bool) -> dict[str, Any]:
    """The field ``logprobs`` of one choice of a chat.

    Args:
        sampled: the tokens.
        text_of: the text of a token.
        raw: report the log-probabilities of the model itself.
    """
    content: list[msgspec.Raw] = []  # in pieces, because one call holds the interpreter's lock
    for index, (token, logprob) in enumerate(_pairs(sampled, raw=raw)):
        others = sampled.alternatives[index] if sampled.alternatives else ()
        entry = _entry(token, logprob, text_of)
        entry["top_logprobs"] = [_entry(other, value, text_of) for other, value in others]
        content.append(msgspec.Raw(msgspec.json.encode(entry)))
    return {"content": content, "refusal": None}


def text_logprobs(sampled: Tokens, text_of: TokenText, *, raw: bool, offset: int) -> dict[str, Any]:
    """The field ``logprobs`` of one choice of a completion.

    Args:
        sampled: the tokens.
        text_of: the text of a token.
        raw: report the log-probabilities of the model itself.
        offset: number of characters before the first token.
    """
    tokens = [text_of(token) for token in sampled.token_ids]
    return {
        "tokens": tokens,
        "token_logprobs": [logprob for _, logprob in _pairs(sampled, raw=raw)],
        "top_logprobs": [
            {text_of(token): logprob for token, logprob in reversed(others)}
            for others in sampled.alternatives
        ]
        or None,
        "text_offset": list(accumulate(map(len, tokens), initial=offset))[:-1],
    }


def token_fields(sampled: Tokens, body: SamplingFields) -> dict[str, Any]:
    """Fields beyond OpenAI's that the request asks for: ids, versions and log-probabilities."""
    if not body.return_token_ids:
        return {}
    fields: dict[str, Any] = {
        "token_ids": sampled.token_ids,
        "token_logprobs": sampled.logprobs,
        "versions": sampled.versions,
    }
    if isinstance(sampled, Completion) and sampled.legal:
        fields["legal"] = sampled.legal
    if sampled.alternatives:
        fields["alternatives"] = sampled.alternatives
    if body.raw_logprobs or body.raw:
        fields["raw_logprobs"] = sampled.raw_logprobs
    return fields


def _pairs(sampled: Tokens, *, raw: bool) -> Sequence[tuple[int, float]]:
    logprobs = sampled.raw_logprobs if raw else sampled.logprobs
    return list(zip(sampled.token_ids, logprobs, strict=True))


def _entry(token: int, logprob: float, text_of: TokenText) -> dict[str, Any]:
    text = text_of(token)
    known = _BROKEN not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}
