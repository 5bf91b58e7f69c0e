"""Publish a new adapter to a vLLM server, through a folder that both can read."""

import asyncio
from pathlib import Path
from typing import Any

from legos.clients.transport import Transport, server_root
from legos.data.names import adapter_name
from legos.errors import AdapterError, EndpointError, EngineError, RequestError
from legos.files.atomic import write_folder
from legos.weights.adapter import Adapter, AdapterInfo
from legos.weights.peft import write_peft

__all__ = ["VllmPublisher"]


class VllmPublisher:
    """Loads adapters into a vLLM server, each version under its own name (``policy@12``).

    A name is never used twice, because vLLM caches its results by name. The server must be started
    with ``--enable-lora --max-lora-rank RANK --max-cpu-loras KEEP`` and
    ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True``, and must see ``folder`` under the same path.

    Folders are never removed: a vLLM server can crash if the folder of an adapter is missing.
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
            url: address of the server, such as ``http://localhost:8000``.
            folder: folder to which the adapters are written, one subfolder each.
            api_key: bearer token.
            keep: number of newest versions of a name that stay loaded, so that running requests
                can finish.
            timeout_s: maximum time to wait for one response, seconds.
            retries: maximum number of retries of a failed request.
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
        """Load the adapter into the server; return once it is live.

        Raises:
            AdapterError: the server rejects it, it uses DoRA, or the same version was published
                with other weights.
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
        for old in self._versions(info.name)[: -self._keep]:
            await self._unload(old)
        return info

    async def drop(self, name: str) -> None:
        """Unload all versions of an adapter.

        Raises:
            RequestError: the server refuses to unload one.
            EngineError: the server cannot be reached.
        """
        for served in self._versions(name):
            await self._unload(served)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        await self._server.aclose()

    def _versions(self, name: str) -> list[str]:
        """The served names of an adapter's loaded versions, in the order of loading."""
        return [served for served in self._loaded if adapter_name(served) == name]

    async def _unload(self, served: str) -> None:
        await self._tell("unload", {"lora_name": served})
        del self._loaded[served]

    async def _tell(self, verb: str, body: dict[str, Any]) -> None:
        try:
            await self._server.request("POST", f"/v1/{verb}_lora_adapter", bytes, json=body)
        except EndpointError as error:  # without the policy's server the run must end
            raise EngineError(str(error)) from error
