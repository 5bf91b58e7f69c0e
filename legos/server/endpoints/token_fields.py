"""The tokens of an answer in the format of OpenAI's API: log-probabilities, texts and ids."""

from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from legos.chat.token_bytes import TokenBytes, printed
from legos.records.message import Completion, Tokens
from legos.server.endpoints.sampling import SamplingFields

__all__ = ["TokenReport", "token_fields"]

_BROKEN = "\ufffd"


class TokenReport:
    """The field ``logprobs`` of one choice, as a whole or for one piece of a stream after another.

    Log-probabilities are the model's own; those of the tokens are there also under the distribution
    that was sampled from.
    """

    def __init__(self, known: TokenBytes) -> None:
        """Begin before the first token; ``known`` has the bytes of tokens."""
        self._known = known
        self._first = True  # no token with bytes has come
        self._whole = getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0  # whole characters so far

    def chat(self, sampled: Tokens) -> dict[str, Any]:
        """The field in the form of a chat."""
        content: list[msgspec.Raw] = []  # in pieces, because one call holds the interpreter's lock
        for token, logprob, own, others, first in self._each(sampled):
            entry = self._entry(token, logprob, first) | {"sampled_logprob": own}
            entry["top_logprobs"] = [self._entry(other, value, first) for other, value in others]
            content.append(msgspec.Raw(msgspec.json.encode(entry)))
        return {"content": content, "refusal": None}

    def text(self, sampled: Tokens) -> dict[str, Any]:
        """The field in the form of a completion; an offset is that of the token's first character.

        An offset counts from the beginning of the answer, stop texts included.
        """
        tokens: list[str] = []
        offsets: list[int] = []
        tops: list[dict[str, float]] = []
        for token, _, _, others, first in self._each(sampled):
            tokens.append(self._printed(token, first)[0])
            offsets.append(self._take(self._known.of(token, first) or b""))
            top: dict[str, float] = {}
            for other, value in others:  # the most probable first; others may print alike
                text = self._printed(other, first)[0]
                top[f"token_id:{other}" if text in top else text] = value
            tops.append(top)
        return {
            "tokens": tokens,
            "token_logprobs": sampled.raw_logprobs,
            "sampled_logprobs": sampled.logprobs,
            "top_logprobs": tops if sampled.alternatives else None,
            "text_offset": offsets,
        }

    def _take(self, piece: bytes) -> int:
        """Take the bytes of a token; the offset of the character to which they belong."""
        begun = self._whole.getstate()[0]  # bytes of a character that is not whole
        text = self._whole.decode(piece)
        at = self._offset
        if begun and text.startswith(_BROKEN) and not (begun + piece).startswith(_BROKEN.encode()):
            at += 1  # that character has become a sign of replacement, before the token
        self._offset += len(text)
        return at

    def _each(
        self, sampled: Tokens
    ) -> Iterator[tuple[int, float, float, Sequence[tuple[int, float]], bool]]:
        """Each token, its two log-probabilities, its alternatives, and whether it is the first."""
        ids = sampled.token_ids
        others = sampled.alternatives or ((),) * len(ids)
        for one in zip(ids, sampled.raw_logprobs, sampled.logprobs, others, strict=True):
            yield *one, self._first
            self._first &= self._known.of(one[0], self._first) is None

    def _printed(self, token: int, first: bool) -> tuple[str, bytes | None]:
        known = self._known.of(token, first)
        return self._known.name(token) if known is None else printed(known), known

    def _entry(self, token: int, logprob: float, first: bool) -> dict[str, Any]:
        text, known = self._printed(token, first)
        return {"token": text, "logprob": logprob, "bytes": None if known is None else list(known)}


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
