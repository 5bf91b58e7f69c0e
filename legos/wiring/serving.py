"""What serving a model needs: adapters that fit it, an engine that is replaced, tool calls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from legos.builtin import BUILTIN
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.data.limits import EngineLimits
from legos.errors import AdapterError
from legos.protocols import Engine
from legos.weights.adapter import Adapter
from legos.wiring.model import ModelHandle

if TYPE_CHECKING:
    from legos.mlx.generate.watchdog import WatchedEngine

__all__ = ["base_of", "put_on", "tool_format_of", "watched_engine"]


def base_of(model: str | None, adapters: Sequence[Adapter]) -> str:
    """The model to load under adapters.

    Args:
        model: the one that is asked for; None: the one that they were trained on, or the built-in
            model where none of them records it.
        adapters: what will be put on it.

    Raises:
        AdapterError: one of them was trained on another model.
    """
    model = model or next((one.base_model for one in adapters if one.base_model), BUILTIN)
    for adapter in adapters:
        adapter.check_base(model)
    return model


def put_on(engine: Engine, adapter: Adapter, model: str) -> None:
    """Make an adapter live in an engine of a model.

    Raises:
        AdapterError: it does not fit; both are named.
    """
    try:
        engine.load_adapter(adapter).result()
    except AdapterError as error:
        raise AdapterError(
            f"{error}; the adapter (trained on {adapter.base_model or 'a model it does not name'}) "
            f"does not fit model {model!r}; give its own with --model"
        ) from error


def watched_engine(model: ModelHandle, limits: EngineLimits) -> "WatchedEngine":
    """An engine of the model that is replaced, its adapters with it, when it dies or hangs."""
    from legos.mlx.generate.watchdog import WatchedEngine

    return WatchedEngine(lambda: model.make_engine(limits))


def tool_format_of(model: ModelHandle) -> ToolFormat:
    """The form that the model was taught, or the plain one, which its prompts then explain."""
    if not model.tokenizer.knows_tools:
        return PLAIN_TOOLS
    from legos.mlx.model.tools import tool_format

    return tool_format(model.folder) or PLAIN_TOOLS
