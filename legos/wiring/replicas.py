"""What an application knows of a model whose weights are in other processes."""

from dataclasses import dataclass
from pathlib import Path

from legos.chat.tokenizer import ChatTokenizer, load_tokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.weights.adapter import LoraShape
from legos.weights.model_folder import context_length
from legos.wiring.device import tool_format_of

__all__ = ["Description"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model without its weights; implements ``legos.wiring.http.Rendering``."""

    folder: Path  # the model's files
    tokenizer: ChatTokenizer
    context: int  # maximum number of prompt and completion tokens together
    tool_format: ToolFormat
    lora: LoraShape | None = None

    @classmethod
    def of(cls, folder: Path) -> "Description":
        """Read it from a model's folder.

        Raises:
            ModelError: a file is missing.
        """
        tokenizer = load_tokenizer(folder)
        return cls(
            folder=folder,
            tokenizer=tokenizer,
            context=context_length(folder),
            tool_format=(tokenizer.knows_tools and tool_format_of(folder)) or PLAIN_TOOLS,
        )
