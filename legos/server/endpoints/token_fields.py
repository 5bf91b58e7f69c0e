"""The tokens of an answer in the format of OpenAI's API: log-probabilities, texts and ids."""

from collections.abc import Sequence
from typing import Any, Protocol

from legos.chat.tokenizer import ChatTokenizer
from legos.data.message import Alternatives, Completion

__all__ = ["Sampled", "TokenTexts", "chat_logprobs", "text_logprobs", "token_fields"]

_BROKEN = "\ufffd"


class Sampled(Protocol):
    """Tokens that were sampled: a ``Completion``, or a ``Progress``."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """[N] token ids."""
        ...

    @property
    def logprobs(self) -> tuple[float, ...]:
        """[N] log-probabilities under the sampled distribution, nats."""
        ...

    @property
    def versions(self) -> tuple[int, ...]:
        """[N] policy versions."""
        ...

    @property
    def raw_logprobs(self) -> tuple[float, ...]:
        """[N] log-probabilities under the model itself, nats, or ()."""
        ...

    @property
    def alternatives(self) -> tuple[Alternatives, ...]:
        """[N] most probable tokens at each position, or ()."""
        ...


class TokenTexts:
    """A cache of the texts of single tokens."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        """The text of one token; an incomplete character becomes the replacement character."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._tokenizer.decode((token,), controls=True)
        return text


def chat_logprobs(sampled: Sampled, texts: TokenTexts, *, raw: bool) -> dict[str, Any]:
    """The field ``logprobs`` of one choice of a chat.

    Args:
        sampled: the tokens.
        texts: the texts of single tokens.
        raw: report the log-probabilities of the model itself.
    """
    content: list[dict[str, Any]] = []
    for index, (token, logprob) in enumerate(_pairs(sampled, raw=raw)):
        others = sampled.alternatives[index] if sampled.alternatives else ()
        entry = _entry(token, logprob, texts)
        entry["top_logprobs"] = [_entry(other, value, texts) for other, value in others]
        content.append(entry)
    return {"content": content, "refusal": None}


def text_logprobs(sampled: Sampled, texts: TokenTexts, *, raw: bool, offset: int) -> dict[str, Any]:
    """The field ``logprobs`` of one choice of a completion.

    Args:
        sampled: the tokens.
        texts: the texts of single tokens.
        raw: report the log-probabilities of the model itself.
        offset: number of characters before the first token.
    """
    said = [texts[token] for token in sampled.token_ids]
    offsets: list[int] = []
    for text in said:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": said,
        "token_logprobs": [logprob for _, logprob in _pairs(sampled, raw=raw)],
        "top_logprobs": [
            {texts[token]: logprob for token, logprob in reversed(others)}
            for others in sampled.alternatives
        ]
        or None,
        "text_offset": offsets,
    }


def token_fields(sampled: Sampled, *, raw: bool) -> dict[str, Any]:
    """Fields beyond OpenAI's: token ids, log-probabilities, versions and alternatives.

    Args:
        sampled: the tokens.
        raw: also report the log-probabilities of the model itself.
    """
    fields: dict[str, Any] = {
        "token_ids": sampled.token_ids,
        "token_logprobs": sampled.logprobs,
        "versions": sampled.versions,
    }
    if isinstance(sampled, Completion) and sampled.legal:
        fields["legal"] = sampled.legal
    if sampled.alternatives:
        fields["alternatives"] = sampled.alternatives
    if raw:
        fields["raw_logprobs"] = sampled.raw_logprobs
    return fields


def _pairs(sampled: Sampled, *, raw: bool) -> Sequence[tuple[int, float]]:
    logprobs = sampled.raw_logprobs if raw else sampled.logprobs
    return list(zip(sampled.token_ids, logprobs, strict=True))


def _entry(token: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    text = texts[token]
    known = _BROKEN not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}
