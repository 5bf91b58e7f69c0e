"""The format of a model's tool calls, most of them from mlx-lm's parsers."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from mlx_lm.tokenizer_utils import load

from legos.chat.load import read_tokenizer
from legos.chat.tools import ToolFormat, also_known

logger = logging.getLogger(__name__)


def tool_format(folder: Path) -> ToolFormat | None:
    """The format of a model whose chat template has tools; None: JSON in tags, or not known."""
    tokenizer = read_tokenizer(folder, lambda place, **options: load(place, options))
    if not tokenizer.has_tool_calling or tokenizer.tool_parser is None:
        template = str(tokenizer.chat_template)
        found = also_known(template)
        if found is None and "<tool_call>" not in template:
            logger.warning(
                "the format in which the model in %s calls tools is not known: its calls stay "
                'text; tool_choice "required" forces a call in a form that is known',
                folder,
            )
        return found
    return ToolFormat(
        start=tokenizer.tool_call_start,
        end=tokenizer.tool_call_end or "",
        parse=cast("Callable[..., Any]", tokenizer.tool_parser),
    )
