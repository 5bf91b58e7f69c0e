"""The longest token bounds how many tokens a text has, or there is no bound."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.chat.longest import longest_token
from legos.chat.tokenizer import load_tokenizer
from legos.errors import ModelError

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


def rules(**fields: Any) -> dict[str, Any]:
    model = {"type": "BPE", "byte_fallback": True, "vocab": {**BYTES, "abcdefgh": 256}}
    return {"model": model, "normalizer": None, "pre_tokenizer": None, "added_tokens": [], **fields}


def longest(found: Mapping[str, Any]) -> int | None:
    return longest_token(lambda: json.dumps(found))


def test_the_longest_token_is_found() -> None:
    assert longest(rules()) == 8
    assert longest(rules(added_tokens=[{"content": "<|end of text|>"}])) == 15
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "_"}
    parts = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, replace]}
    assert longest(rules(normalizer=parts)) == 8
    assert longest(rules(normalizer={"type": "NFC"})) == 32


@pytest.mark.parametrize(
    "fields",
    [
        {"model": {"type": "WordPiece", "vocab": {**BYTES, "[UNK]": 256}}},
        {"model": {"type": "BPE", "byte_fallback": False, "vocab": BYTES}},
        {"model": {"type": "BPE", "byte_fallback": True, "vocab": {"a": 0}}},
        {"model": {"type": "BPE", "byte_fallback": True, "vocab": BYTES}, "truncation": {"max": 9}},
        {"pre_tokenizer": {"type": "ByteLevel"}},  # the vocabulary has no letters of bytes
        {"normalizer": {"type": "StripAccents"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "long enough"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {}, "behavior": "Removed"}},
        {"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "a"}},
    ],
)
def test_what_may_leave_out_text_has_no_bound(fields: dict[str, Any]) -> None:
    assert longest(rules(**fields)) is None


def test_a_tokenizer_in_python_has_no_bound() -> None:
    def refuse() -> str:
        raise ModelError("it is written in Python")

    assert longest_token(refuse) is None


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Mapping[str, Path]) -> Any:
    return load_tokenizer(tiny_models["llama"])


@given(st.text())
def test_no_text_has_fewer_tokens_than_the_bound_says(tokenizer: Any, text: str) -> None:
    bound = longest_token(tokenizer.definition)
    assert bound is not None
    assert len(tokenizer.encode(text)) * bound >= len("".join(text.split()))
