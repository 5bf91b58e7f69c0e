"""Load the tokenizer of a model folder: the only place that does."""

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from legos.chat.tokenizer import ChatTokenizer
from legos.errors import ModelError

logger = logging.getLogger(__name__)


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Load the tokenizer of a model folder; nothing is downloaded and no code of the folder is run.

    Raises:
        ModelError: the folder, a file in it or its contents cannot be used.
    """
    try:
        tokenizer = read_tokenizer(folder)
    except Exception as error:  # the library raises whatever its parsers do
        raise ModelError(f"cannot read the tokenizer in {folder}: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"the tokenizer in {folder} is a {type(tokenizer).__name__}, which runs in Python, in "
            "one thread at a time; take a copy of the model with a tokenizer.json"
        )
    made = ChatTokenizer(tokenizer, end_ids=_end_ids(folder, tokenizer))
    made.check()
    return made


def read_tokenizer(folder: Path, from_pretrained: Callable[..., Any] | None = None) -> Any:
    """The library's tokenizer; a config.json that the library rejects is left out.

    Args:
        folder: the model's folder, no code of which is run.
        from_pretrained: loads it in place of the library's function; takes the same options.

    Raises:
        Exception: the library's own, where it cannot be read.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing
    from transformers import AutoTokenizer, PretrainedConfig  # slow to import

    auto: Any = AutoTokenizer
    # Left out, `trust_remote_code` asks the user whether code of the folder shall run.
    load = partial(
        from_pretrained or auto.from_pretrained,
        folder,
        local_files_only=True,
        trust_remote_code=False,
    )
    try:
        return load()
    except Exception as error:
        try:
            found = load(config=PretrainedConfig())
        except Exception:
            raise error from None  # the tokenizer's own files are wrong, as the first error says
        logger.info("the tokenizer in %s is read without config.json: %s", folder, error)
        return found


def _end_ids(folder: Path, tokenizer: Any) -> list[int]:
    """The tokenizer's end of text and all ends that the model's configurations name."""
    ends: set[int] = set()
    if tokenizer.eos_token_id is not None:
        ends.add(int(tokenizer.eos_token_id))
    for file in (folder / "generation_config.json", folder / "config.json"):
        if not file.is_file():
            continue
        named: list[Any] = []
        try:
            config: Any = json.loads(file.read_text(encoding="utf-8"))
            parts: list[Any] = [config, config.get("text_config") or {}]  # of a wrapped text model
            for part in parts:
                one = part.get("eos_token_id")
                named += one if isinstance(one, list) else [one]
        except (ValueError, AttributeError, TypeError) as error:
            raise ModelError(f"cannot read {file}: {error}") from error
        ids = [token for token in named if token is not None]
        if not all(isinstance(token, int) for token in ids):
            raise ModelError(f"cannot read {file}: eos_token_id is {ids}; expected token ids")
        ends.update(ids)
    return sorted(ends)
