"""Texts that cannot fit into the context are refused without being tokenized whole."""

import asyncio
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine

from legos.chat.lengths import check_length, exceeds
from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.errors import RequestError
from legos.records.message import Message, Sampling

CONTEXT = 100


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Mapping[str, Path]) -> ChatTokenizer:
    return load_tokenizer(tiny_models["llama"])


def test_plays_that_ask_a_text_beyond_the_context_tokenize_its_beginning_once(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode_each = ChatTokenizer.encode_each

    def counting(self: ChatTokenizer, texts: Sequence[str], **options: Any) -> Any:
        encoded.append(sum(map(len, texts)))
        return encode_each(self, texts, **options)

    monkeypatch.setattr(ChatTokenizer, "encode_each", counting)
    client = EngineClient(FakeEngine(), tokenizer, context=CONTEXT)
    for _ in range(8):
        with pytest.raises(RequestError, match="message of 100000 characters has more than 100 to"):
            asyncio.run(client.complete([Message("user", "word " * 20_000)], Sampling()))
    assert encoded == [6 * CONTEXT]


class Words:
    """A tokenizer: a known word is one token; any other, such as one that was cut, is letters."""

    def encode(self, text: str) -> list[str]:
        known = ("house", "elephants")
        return [token for word in text.split() for token in ([word] if word in known else word)]


@pytest.mark.parametrize(
    "text", ["elephants " * CONTEXT, "house " * (CONTEXT - 1) + "elephants", " " * 5_000 + "house"]
)
def test_no_text_that_fits_is_refused(text: str) -> None:
    words: Any = Words()
    assert len(text) > 6 * CONTEXT >= 6 * len(words.encode(text))
    check_length([Message("user", text)], words, CONTEXT)
    with pytest.raises(RequestError, match="has more than 100 tokens"):
        check_length([Message("user", f"{'xy ' * CONTEXT}{text}")], words, CONTEXT)


def test_no_text_is_kept_after_its_length_was_checked() -> None:
    words: Any = Words()
    tracemalloc.start()
    try:
        for number in range(64):
            assert exceeds(f"{number} " + "xy " * 100_000, words, CONTEXT)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5e6  # bytes; the texts have 19 MB
