"""``legos serve``: a model, with or without an adapter, over HTTP."""

from pathlib import Path

import uvicorn

from legos.build.model import apply_adapter_shape, apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.errors import ConfigError
from legos.server.app import make_app
from legos.weights.adapter import Adapter, read_adapter

__all__ = ["serve"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(*, model: str, adapter: Path | None, host: str, port: int) -> None:
    """Answer requests until the process is told to end.

    Args:
        model: a folder, a hub name, or the built-in model.
        adapter: adapter folder, live under the name ``policy``; None serves the model as it is.
        host: loopback only, because nothing here asks for a key.
        port: 0 picks a free one.

    Raises:
        ConfigError: another host than loopback.
        LegosError: the model or the adapter cannot be loaded.
    """
    if host not in LOOPBACK:
        raise ConfigError(
            f"host {host!r} is reachable by others and the server asks for no key; use 127.0.0.1"
        )
    weights = read_adapter(adapter) if adapter is not None else None
    handle = load_model(model)
    if weights is None:
        apply_lora(handle)
    else:
        apply_adapter_shape(handle, weights.shape)
    engine = handle.make_engine()
    try:
        live = weights or handle.base_adapter()
        engine.load_adapter(
            Adapter(name="policy", version=live.version, shape=live.shape, arrays=live.arrays)
        ).result()
        app = make_app(EngineClient(engine, handle.tokenizer), engine)
        uvicorn.run(app, host=host, port=port, log_level="info")
    finally:
        engine.close()
        handle.close()
