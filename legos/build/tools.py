"""How a loaded model writes tool calls."""

from legos.build.model import ModelHandle
from legos.chat.tools import PLAIN_TOOLS, ToolFormat

__all__ = ["tool_format_of"]


def tool_format_of(model: ModelHandle) -> ToolFormat:
    """The form that the model was taught, or the plain one, which its prompts then explain."""
    if not model.tokenizer.knows_tools:
        return PLAIN_TOOLS
    from legos.mlx.tools import tool_format

    return tool_format(model.folder) or PLAIN_TOOLS
