"""The format of a model's tool calls, most of them from mlx-lm's parsers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from mlx_lm.tokenizer_utils import load

from legos.chat.load import read_tokenizer
from legos.chat.tools import ToolFormat, shown_format


def tool_format(folder: Path) -> ToolFormat | None:
    """The format of a model whose chat template has tools; None: JSON in tags, or not known."""
    tokenizer = read_tokenizer(folder, lambda place, **options: load(place, options))
    if not tokenizer.has_tool_calling or tokenizer.tool_parser is None:
        return shown_format(str(tokenizer.chat_template), folder)
    return ToolFormat(
        start=tokenizer.tool_call_start,
        end=tokenizer.tool_call_end or "",
        parse=cast("Callable[..., Any]", tokenizer.tool_parser),
    )
