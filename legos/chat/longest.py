"""How much text one token can stand for, to refuse texts that are too long without tokenizing."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from legos.errors import ModelError

__all__ = ["BYTE_LETTERS", "longest_token"]

_COMPOSED = 4  # code points that Unicode composes into one at most (U+1F82)
_KEEPING = {"NFC", "NFD", "NFKC", "NFKD", "Prepend", "ByteLevel", "Lowercase"}
_SPLITTING = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}


def longest_token(definition: Callable[[], str]) -> int | None:
    """Maximum number of characters other than white space that one token stands for.

    Args:
        definition: the text of a tokenizer.json (``ChatTokenizer.definition``).

    Returns:
        None if there is no maximum: the tokenizer may leave out text, or have one token for a text
        of any length that it does not know.
    """
    try:
        rules: Mapping[str, Any] = json.loads(definition())
    except ModelError:  # a tokenizer in Python, whose rules cannot be read
        return None
    model, normalizer, splitter = rules["model"], rules["normalizer"], rules["pre_tokenizer"]
    if model.get("type") != "BPE" or rules.get("truncation"):
        return None
    normalizers, splitters = _parts(normalizer, "normalizers"), _parts(splitter, "pretokenizers")
    bytewise = any(one["type"] == "ByteLevel" for one in (*normalizers, *splitters))
    if not _has_bytes(model, bytewise=bytewise):
        return None
    if not all(map(_keeps, normalizers)) or not all(map(_only_splits, splitters)):
        return None
    added = [one["content"] for one in rules["added_tokens"]]
    composed = any(one["type"] in ("NFC", "NFKC") for one in normalizers)
    return max(map(len, (*model["vocab"], *added))) * (_COMPOSED if composed else 1)


def _parts(rule: Mapping[str, Any] | None, inside: str) -> list[Mapping[str, Any]]:
    """The rules of a sequence, or the one rule; empty where there is none."""
    if rule is None:
        return []
    if rule["type"] != "Sequence":
        return [rule]
    return [part for one in rule[inside] for part in _parts(one, inside)]


def _has_bytes(model: Mapping[str, Any], *, bytewise: bool) -> bool:
    """Whether the vocabulary can spell any text, so that nothing of it is dropped."""
    names: list[str] = [f"<0x{byte:02X}>" for byte in range(256)]
    if bytewise:
        names = BYTE_LETTERS
    elif not model.get("byte_fallback"):
        return False
    return all(name in model["vocab"] for name in names)


def _byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write each byte as: itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_LETTERS = _byte_letters()


def _keeps(rule: Mapping[str, Any]) -> bool:
    """Whether a normalizer leaves out nothing but white space."""
    if rule["type"] == "Replace":  # such as a space by an underline
        pattern = rule["pattern"].get("String")
        return pattern is not None and (not pattern.strip() or len(rule["content"]) >= len(pattern))
    return rule["type"] in _KEEPING


def _only_splits(rule: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer leaves out nothing."""
    if rule["type"] in ("Split", "Punctuation"):
        return rule["behavior"] != "Removed"
    return rule["type"] in _SPLITTING
