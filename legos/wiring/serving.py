"""Choose the base model of adapters to serve, and load them into an engine."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from legos.builtin import BUILTIN
from legos.errors import AdapterError
from legos.protocols import Engine
from legos.weights.adapter import Adapter


def base_of(model: str | None, adapters: Sequence[Adapter]) -> str:
    """The base model to load for some adapters.

    Args:
        model: the requested model; None: the model that the adapters were trained on, or the
            built-in model where none of them records one.
        adapters: the adapters to serve with it.

    Raises:
        AdapterError: one of the adapters was trained on another model.
    """
    exact_first = sorted(adapters, key=lambda one: not one.exact_base)
    model = model or next((one.base_model for one in exact_first if one.base_model), BUILTIN)
    for adapter in adapters:
        adapter.check_base(model)
    return model


def put_on(engine: Engine, adapter: Adapter, model: str) -> None:
    """Make an adapter live in an engine of a model.

    Raises:
        AdapterError: it was trained on another model, or does not fit; the message names both.
    """
    adapter.check_base(model)
    with both_named(adapter, model):
        engine.load_adapter(adapter).result()


@contextmanager
def both_named(adapter: Adapter, model: str) -> Generator[None]:
    """Within the block, an error names the adapter's model and the one it is put on.

    Raises:
        AdapterError: the adapter does not fit.
    """
    try:
        yield
    except AdapterError as error:
        raise AdapterError(
            f"{error}; the adapter (trained on {adapter.base_model or 'a model it does not name'}) "
            f"does not fit model {model!r}; give its own with --model"
        ) from error
