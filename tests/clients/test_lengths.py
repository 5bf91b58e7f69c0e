"""Texts that cannot fit into the context are refused without being tokenized whole."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine

from legos.chat.lengths import check_length
from legos.chat.tokenizer import ChatTokenizer, load_tokenizer
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


@pytest.mark.parametrize("piece", ["a", "word ", " ", "\n\n", "日本", "👩‍👧", "the house "])
@pytest.mark.parametrize("length", [601, 700, 2_000])
def test_no_text_that_fits_is_refused(tokenizer: ChatTokenizer, piece: str, length: int) -> None:
    message = Message("user", (piece * length)[:length])
    try:
        check_length([message], tokenizer, CONTEXT)
    except RequestError:
        assert len(tokenizer.render((message,))) > CONTEXT
