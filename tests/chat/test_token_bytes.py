"""The bytes of tokens, joined, are the text that the tokenizer decodes."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from legos.chat.token_bytes import BYTE_LETTERS, TokenBytes, printed
from legos.chat.tokenizer import ChatTokenizer

WORDS = ["Ġa", "ab", "Ãł", "ðŁĺ"]  # à, and three of the four bytes of a face
SPECIAL = ["<s>", "</s>", "<think>", "</think>"]


def bytewise() -> ChatTokenizer:
    """A tokenizer as GPT-2 and Qwen have it."""
    pieces = [*SPECIAL, *BYTE_LETTERS, *WORDS]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    library = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    return ChatTokenizer(library, end_ids=[1])


def sentencepiece() -> ChatTokenizer:
    """A tokenizer as Llama 2 has it: bytes where it has no word, and no space at the beginning."""
    words = ["▁", "▁a", "a", "ab", "日", "�"]
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<s>"))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    library = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    return ChatTokenizer(library, end_ids=[1])


KINDS = {"byte-level": bytewise(), "byte fallback": sentencepiece()}


def joined(tokenizer: ChatTokenizer, ids: list[int]) -> bytes:
    of = TokenBytes(tokenizer).of
    found: list[bytes] = []
    for token in ids:
        if (known := of(token, not found)) is not None:
            found.append(known)
    return b"".join(found)


@pytest.mark.parametrize("kind", KINDS)
@example([ord(" ") + len(SPECIAL)] * 2)
@example([2, 200, 3, 200])
@given(ids=st.lists(st.integers(0, 263), max_size=12))
def test_joined_they_are_the_text(kind: str, ids: list[int]) -> None:
    tokenizer = KINDS[kind]
    assert joined(tokenizer, ids).decode(errors="replace") == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text())
def test_the_bytes_of_a_character_are_known_one_by_one(kind: str, text: str) -> None:
    ids = [byte + len(SPECIAL) for byte in text.encode()]
    if kind == "byte fallback":
        text = text.removeprefix(" ")
    assert joined(KINDS[kind], ids) == text.encode()


def test_a_token_that_is_left_out_of_texts_has_none() -> None:
    for tokenizer in KINDS.values():
        assert [TokenBytes(tokenizer).of(token) for token in range(4)] == [
            None,
            None,
            b"<think>",
            b"</think>",
        ]
        assert TokenBytes(tokenizer).name(1) == "</s>"


def test_what_is_no_character_is_printed_as_bytes() -> None:
    assert printed(b"ab") == "ab"
    assert printed(b"\xf0\x9f") == r"bytes:\xf0\x9f"
