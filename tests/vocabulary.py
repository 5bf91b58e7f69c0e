"""The character vocabulary of the built-in model; its tokenizer is in ``model/tokenizer.json``.

Printable ASCII characters and the newline are single tokens. Other characters become the bytes of
their UTF-8 form, so decoding restores every text.
"""

__all__ = [
    "ASSISTANT",
    "BOS",
    "CHARACTERS",
    "END",
    "PAD",
    "SPECIALS",
    "SYSTEM",
    "TOKENS",
    "USER",
    "token_id",
]

PAD = "<|pad|>"
BOS = "<|bos|>"
END = "<|end|>"  # ends every message; also the end-of-sequence token
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"

SPECIALS = (PAD, BOS, END, SYSTEM, USER, ASSISTANT)
CHARACTERS = ("\n", *(chr(code) for code in range(0x20, 0x7F)))
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
TOKENS = SPECIALS + CHARACTERS + BYTES  # [V] the token of every id


def token_id(token: str) -> int:
    """Id of a special token, or of a character that has its own token."""
    return TOKENS.index(token)
