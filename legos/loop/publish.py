"""How a new adapter reaches the engine of this process, vLLM, and several at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legos.clients.publish import server_root
from legos.clients.transport import Transport
from legos.errors import AdapterError, EndpointError, EngineError, RequestError
from legos.loop.atomic import write_folder
from legos.protocols import Engine, Publisher
from legos.weights.adapter import Adapter, AdapterInfo
from legos.weights.peft import write_peft

__all__ = ["EnginePublisher", "ManyPublishers", "VllmPublisher", "publisher_reaching"]


class EnginePublisher:
    """Hands the evaluated arrays over: no file, no copy of any weight."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once the adapter is live, with what is live.

        Raises:
            EngineError: something else is live afterwards.
        """
        await asyncio.to_thread(getattr, adapter, "digest")  # decoding need not wait for it
        live = await asyncio.wrap_future(self._engine.load_adapter(adapter))
        if live != adapter.info:
            raise EngineError(f"published {adapter.info} but {live} is live")
        return live


class ManyPublishers:
    """Publishes to all of several places at once."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self.publishers = tuple(publishers)

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once the adapter is live everywhere.

        Raises:
            EngineError: a place cannot be reached, or has something else live afterwards.
        """
        lives = await asyncio.gather(
            *(publisher.publish(adapter) for publisher in self.publishers), return_exceptions=True
        )
        for live in lives:
            if isinstance(live, BaseException):
                raise live
        return adapter.info


class VllmPublisher:
    """Loads adapters into a vLLM server, each version under its own name (``policy@12``).

    A name is never used twice, because vLLM keeps what it has computed by name. It has to be
    started with ``--enable-lora --max-lora-rank RANK --max-cpu-loras KEEP`` and
    ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True``, and has to see ``folder`` under the same path.

    Folders stay where they are: a vLLM server whose adapter's folder is gone can die of it.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        api_key: str | None = None,
        keep: int = 4,
        timeout_s: float = 120.0,
        retries: int = 4,
    ) -> None:
        """Make a publisher; nothing is sent yet.

        Args:
            url: of the server, such as ``http://localhost:8000``.
            folder: where the adapters are written, one folder each.
            api_key: sent as a bearer token.
            keep: newest versions that stay loaded, so that what is being sampled can end.
            timeout_s: longest wait for one acknowledgement, seconds.
            retries: how often a request that failed is sent again.
        """
        self._server = Transport(
            server_root(url),
            api_key=api_key,
            timeout_s=timeout_s,
            max_connections=2,
            retries=retries,
        )
        self._folder = folder
        self._keep = keep
        self._loaded: dict[str, str] = {}  # served name -> digest, in the order of loading

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once the adapter is live.

        Raises:
            AdapterError: the server refuses it, it is DoRA, or the same version was published
                otherwise.
            EngineError: the server cannot be reached.
        """
        info = adapter.info
        if adapter.shape.use_dora:
            raise AdapterError(
                f"adapter {info.name}@{info.version} is DoRA, which vLLM does not serve; set "
                "training.use_dora to false, or serve the merged model of `legos export --format "
                "fused`"
            )
        served = f"{info.name}@{info.version}"
        if self._loaded.get(served, info.digest) != info.digest:
            raise AdapterError(
                f"{served} is live with digest {self._loaded[served]}, not {info.digest}; "
                "give the new adapter a version of its own"
            )
        if served in self._loaded:
            return info
        place = (self._folder / served).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(write_folder, place, lambda folder: write_peft(adapter, folder))
        try:
            await self._tell("load", {"lora_name": served, "lora_path": str(place)})
        except RequestError as error:
            raise AdapterError(f"adapter {served} is not published: {error}") from error
        self._loaded[served] = info.digest
        for old in list(self._loaded)[: -self._keep]:
            await self._tell("unload", {"lora_name": old})
            del self._loaded[old]
        return info

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._server.aclose()

    async def _tell(self, verb: str, body: dict[str, Any]) -> None:
        try:
            await self._server.request("POST", f"/v1/{verb}_lora_adapter", bytes, json=body)
        except EndpointError as error:  # it serves the policy
            raise EngineError(str(error)) from error


def publisher_reaching(client: object, publisher: Publisher) -> Publisher:
    """A publisher that also reaches the server that a client asks, where there is one.

    Args:
        client: who answers an arena; one that asks a server has a ``publisher``.
        publisher: reaches what the trainer reaches anyway.
    """
    theirs: Publisher | None = getattr(client, "publisher", None)
    known = publisher.publishers if isinstance(publisher, ManyPublishers) else (publisher,)
    if theirs is None or theirs in known:
        return publisher
    return ManyPublishers((*known, theirs))
