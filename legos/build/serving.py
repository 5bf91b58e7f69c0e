"""What serving a loaded model needs: an engine that is made again when it dies, and tool calls."""

from typing import TYPE_CHECKING

from legos.build.model import ModelHandle
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.data.limits import EngineLimits

if TYPE_CHECKING:
    from legos.mlx.generate.guard import GuardedEngine

__all__ = ["guarded_engine", "tool_format_of"]


def guarded_engine(model: ModelHandle, limits: EngineLimits) -> "GuardedEngine":
    """An engine of the model that is replaced, its adapters with it, when it dies or hangs."""
    from legos.mlx.generate.guard import GuardedEngine

    return GuardedEngine(lambda: model.make_engine(limits))


def tool_format_of(model: ModelHandle) -> ToolFormat:
    """The form that the model was taught, or the plain one, which its prompts then explain."""
    if not model.tokenizer.knows_tools:
        return PLAIN_TOOLS
    from legos.mlx.model.tools import tool_format

    return tool_format(model.folder) or PLAIN_TOOLS
