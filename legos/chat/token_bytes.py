"""The bytes that single tokens stand for: joined, they are the text of a completion in UTF-8."""

import re
from functools import cache

from legos.chat.tokenizer import ChatTokenizer

__all__ = ["TokenBytes", "printed"]


def _byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write each byte as: itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_LETTERS = _byte_letters()

_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
_BYTE_NAME = re.compile(r"<0x([0-9A-F]{2})>")
_BROKEN = "\ufffd"


class TokenBytes:
    """The bytes of each token of a vocabulary."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._guard = tokenizer.encode("a")[-1:]  # some decoders drop a space at the beginning
        self.of = cache(self._find)

    def _find(self, token: int, first: bool = False) -> bytes | None:
        """The bytes of a token; None: it is left out of texts, as special tokens are, or unknown.

        Args:
            token: its id.
            first: whether no other token with bytes comes before it.
        """
        decode, guard = self._tokenizer.decode, () if first else self._guard
        text = decode((*guard, token))[len(decode(guard)) :]
        if not text and self.name(token):
            return None
        piece = self._tokenizer.piece(token)
        if _BROKEN not in text or _BROKEN in piece:
            return text.encode()
        if found := _BYTE_NAME.fullmatch(piece):
            return bytes.fromhex(found[1])
        spelled = bytes(_BYTES.get(letter, 0) for letter in piece)
        return spelled if spelled.decode(errors="replace") == text else None

    def name(self, token: int) -> str:
        """The text of a token where special tokens are shown by their names."""
        return self._tokenizer.decode((token,), controls=True)


def printed(known: bytes) -> str:
    r"""Bytes as the text of a token: ``bytes:\xf0\x9f`` where they are not whole characters."""
    try:
        return known.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in known)
