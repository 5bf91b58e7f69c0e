"""What serving a model needs: a base model that fits its adapters."""

from collections.abc import Sequence

from legos.builtin import BUILTIN
from legos.errors import AdapterError
from legos.protocols import Engine
from legos.weights.adapter import Adapter

__all__ = ["base_of", "put_on"]


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
