"""Several servers of one model behind one application: its engine, and what it knows of the model.

The application's process has the tokenizer and no weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from legos.chat.tokenizer import ChatTokenizer, load_tokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.clients.remote import RemoteEngine
from legos.clients.served import LegosServer
from legos.clients.transport import server_name
from legos.publish.broadcast import Broadcaster
from legos.publish.http import http_publishers
from legos.weights.adapter import LoraShape
from legos.weights.model_folder import context_length
from legos.wiring.device import tool_format_of

__all__ = ["Description", "replica_engine"]

RETRIES = 2  # of a failed request at one replica; then another one is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model without its weights; implements ``legos.wiring.http.Rendering``."""

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
            tokenizer=tokenizer,
            context=context_length(folder),
            tool_format=(tokenizer.knows_tools and tool_format_of(folder)) or PLAIN_TOOLS,
        )


def replica_engine(urls: Sequence[str], model: Description, *, api_key: str) -> RemoteEngine:
    """The engine of servers that share the work, and get every adapter.

    Args:
        urls: addresses of the servers (``legos serve``), which have the same model.
        model: their model.
        api_key: their API key.
    """
    publishers = http_publishers(urls, api_key=api_key, retries=RETRIES)
    return RemoteEngine(
        [
            LegosServer(url, api_key=api_key, loaded=loaded)
            for url, loaded in zip(urls, publishers, strict=True)
        ],
        Broadcaster(zip(map(server_name, urls), publishers, strict=True)),
        num_vocabulary=model.tokenizer.vocab_size,
        context=model.context,
    )
