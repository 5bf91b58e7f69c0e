"""The tokens of an answer in the format of OpenAI's API: log-probabilities, texts and ids."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from legos.records.message import Completion, Tokens
from legos.server.endpoints.sampling import SamplingFields

_BROKEN = "\ufffd"  # what a decoder says of bytes that are no whole character


class TokenReport:
    """The field ``logprobs`` of one choice, as a whole or for one piece of a stream after another.

    Log-probabilities are the model's own; those of the tokens are there also under the distribution
    that was sampled from.
    """

    def __init__(self, text_of: Callable[[int], str]) -> None:
        """Begin before the first token; ``text_of`` returns the text of a token."""
        self._text_of = text_of
        self._offset = 0  # characters of the tokens so far

    def chat(self, sampled: Tokens) -> dict[str, Any]:
        """The field in the form of a chat."""
        content: list[msgspec.Raw] = []  # in pieces, because one call holds the interpreter's lock
        for token, logprob, own, others in self._each(sampled):
            entry = self._entry(token, logprob) | {"sampled_logprob": own}
            entry["top_logprobs"] = [self._entry(other, value) for other, value in others]
            content.append(msgspec.Raw(msgspec.json.encode(entry)))
        return {"content": content, "refusal": None}

    def text(self, sampled: Tokens) -> dict[str, Any]:
        """The field in the form of a completion; offsets count the characters of the tokens."""
        tokens: list[str] = []
        offsets: list[int] = []
        tops: list[dict[str, float]] = []
        for token, _, _, others in self._each(sampled):
            tokens.append(self._text_of(token))
            offsets.append(self._offset)
            self._offset += len(tokens[-1])
            top: dict[str, float] = {}
            for other, value in others:  # the most probable first; others may print alike
                text = self._text_of(other)
                top[f"token_id:{other}" if text in top else text] = value
            tops.append(top)
        return {
            "tokens": tokens,
            "token_logprobs": sampled.raw_logprobs,
            "sampled_logprobs": sampled.logprobs,
            "top_logprobs": tops if sampled.alternatives else None,
            "text_offset": offsets,
        }

    def _each(
        self, sampled: Tokens
    ) -> Iterator[tuple[int, float, float, Sequence[tuple[int, float]]]]:
        """Each token, its two log-probabilities, and its alternatives."""
        ids = sampled.token_ids
        others = sampled.alternatives or ((),) * len(ids)
        yield from zip(ids, sampled.raw_logprobs, sampled.logprobs, others, strict=True)

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text_of(token)
        known = None if _BROKEN in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": known}


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
    if sampled.raw_logprobs:
        fields["raw_logprobs"] = sampled.raw_logprobs
    return fields
