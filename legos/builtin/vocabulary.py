"""The character vocabulary and the chat format of the built-in model, as files for the hub.

The files are written as plain JSON and not by a tokenizer library, so that their bytes do not
depend on the version of that library.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "ASSISTANT",
    "BOS",
    "CHARACTERS",
    "CHAT_TEMPLATE",
    "END",
    "PAD",
    "SYSTEM",
    "TOKENS",
    "USER",
    "token_id",
    "write_json",
    "write_tokenizer",
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

# Every message ends with the token that ends a completion, so each prompt of a conversation begins
# with the tokens of its earlier turns.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] in ['system', 'assistant'] %}{{- '<|' + message['role'] + '|>' }}"
    "{%- else %}{{- '<|user|>' }}{%- endif %}"
    "{{- message['content'] + '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def token_id(token: str) -> int:
    """Id of a special token, or of a character that has its own token."""
    return TOKENS.index(token)


def write_tokenizer(folder: Path, *, max_tokens: int) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``.

    Printable ASCII characters and the newline are single tokens. Other characters become the bytes
    of their UTF-8 form, so decoding restores every text.

    Args:
        folder: an existing folder.
        max_tokens: longest sequence that the model accepts.
    """
    write_json(folder / "tokenizer.json", _tokenizer())
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    write_json(folder / "special_tokens_map.json", names)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", settings)


def _tokenizer() -> dict[str, Any]:
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, token in enumerate(SPECIALS)
    ]
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(TOKENS)},
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": model,
    }


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with the same bytes for the same content."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
