"""How a new adapter reaches the engine of this process."""

import asyncio

from legos.errors import EngineError
from legos.protocols import Engine
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["EnginePublisher"]


class EnginePublisher:
    """Hands the evaluated arrays over: no file, no copy of any weight."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once the adapter is live, with what is live.

        Raises:
            EngineError: something else is live afterwards.
        """
        live = await asyncio.wrap_future(self._engine.load_adapter(adapter))
        if live != adapter.info:
            raise EngineError(f"published {adapter.info} but {live} is live")
        return live
