"""The format of a model's tool calls, from mlx-lm's parsers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from mlx_lm.tokenizer_utils import load

from legos.chat.tools import ToolFormat

__all__ = ["tool_format"]


def tool_format(folder: Path) -> ToolFormat | None:
    """The format that mlx-lm infers from a model's tokenizer files; None where it knows none."""
    tokenizer: Any = load(folder, {"local_files_only": True})
    if not tokenizer.has_tool_calling or tokenizer.tool_parser is None:
        return None
    return ToolFormat(
        start=tokenizer.tool_call_start,
        end=tokenizer.tool_call_end or "",
        parse=cast("Callable[..., Any]", tokenizer.tool_parser),
    )
