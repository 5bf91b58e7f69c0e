"""Publish adapters to one vLLM server, and bring them back after the server has failed."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from legos.clients.pool import all_done
from legos.errors import AdapterError, EndpointError, EngineError, RequestError
from legos.remote.vllm.api import VllmApi
from legos.remote.vllm.live import LiveAdapters, ServedModel
from legos.remote.vllm.probe import Probe
from legos.remote.vllm.served import AdapterFolders
from legos.remote.vllm.upkeep import Upkeep
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["VllmPublisher"]

logger = logging.getLogger(__name__)
KEPT_FOLDERS = 8  # of unloaded adapters: vLLM may still read one for a request that was aborted
MOST_FAILURES = 10  # of the server between two publications
AGAIN_S = 1.0  # pause before a server that answered and failed again is asked once more


class VllmPublisher:
    """Loads each version of an adapter under a name of its own, and checks it before it is used.

    A version is announced to the clients (``LiveAdapters``) once its log-probabilities at the
    server are the trainer's. A replaced version is unloaded with the first publication after its
    last request has ended, while the new one is written. All methods belong to one event loop.
    """

    def __init__(
        self,
        server: Upkeep,
        live: LiveAdapters,
        probe: Probe,
        *,
        names: Sequence[str],
        folder: Path | None = None,
        api_key: str | None = None,
    ) -> None:
        """Make a publisher; nothing is sent before ``start``.

        Args:
            server: the server.
            live: receives the adapters that are live.
            probe: what the trainer computes.
            names: names of the adapters that will be live at the same time.
            folder: where the adapters are written, which the server sees under the same path; None:
                the system's folder for temporary files.
            api_key: bearer token.
        """
        self._server = server
        self._live = live
        self._folders = AdapterFolders(folder)
        self._probe = probe
        self._names = names
        self._api = VllmApi(server.url, api_key=api_key)
        self._base = ""  # the server's base model
        self._slots: int | None = None  # adapters that can answer at once; None: not known
        self._adapters: dict[str, Adapter] = {}  # name at the server -> what was loaded
        self._unloaded: deque[str] = deque()  # names whose folders still exist
        self._publishing = asyncio.Lock()
        self._failures = 0
        live.recovery.on_failure(self._mend)

    async def start(self) -> None:
        """Check the server with an adapter.

        Raises:
            AdapterError: the server has no LoRA, too small a rank, too few slots, ignores the
                adapter, or has another model; the message names the flag.
            EngineError: the server does not answer.
        """
        try:
            self._base = await self._base_model()
            first = await asyncio.to_thread(self._probe.first_adapter)
            served = self._folders.served(first)
            await self._folders.write(first, served)
            await self._load(served, first)
            self._slots = await self._api.slots()
            await self._api.unload(served.model)
        except EndpointError as error:
            raise EngineError(str(error)) from error
        self._unloaded.append(served.model)
        self._check_slots(self._names)

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; return once requests use it.

        Raises:
            AdapterError: the server rejects it or computes something else, there is no slot for
                it, it is DoRA, or its version was published with other weights.
            EngineError: the server failed and did not come back.
        """
        info = adapter.info
        if adapter.shape.use_dora:
            raise AdapterError(
                f"adapter {info.name}@{info.version} is DoRA, which vLLM does not serve; set "
                "training.use_dora to false, or serve the merged model of `legos export --format "
                "fused`"
            )
        async with self._publishing:
            served = self._folders.served(adapter)
            former = self._live.newest.get(info.name)
            if former == served:
                return info
            if former is not None and former.digest and former.version == info.version:
                raise AdapterError(
                    f"{info.name}@{info.version} is live with digest {former.digest}, not "
                    f"{info.digest}; give the new adapter a version of its own"
                )
            live = [one.adapter for one in self._live.newest.values() if one.digest]
            self._check_slots({*live, info.name})
            await all_done([self._folders.write(adapter, served), self._retire()])
            await self._live.recovery.persist(lambda: self._load(served, adapter))
            self._adapters[served.model] = adapter
            self._live.announce(served)
            self._failures = 0
        return info

    async def drop(self, name: str) -> None:
        """Withdraw an adapter; running requests finish with it.

        Raises:
            AdapterError: no adapter of that name is live.
            EngineError: the server failed and did not come back.
        """
        async with self._publishing:
            live = self._live.newest.get(name)
            if live is None or not live.digest:
                raise AdapterError(f"no adapter {name!r} is live in {self._server.url}")
            self._live.withdraw(name)
            await self._retire()

    async def aclose(self) -> None:
        """Unload all adapters of this run where the server answers, and close the connections."""
        try:
            for model in await self._api.listed():
                if self._folders.is_own(model):
                    await self._api.unload(model)
            self._folders.close()
        except (EndpointError, RequestError) as error:
            logger.info("adapters of this run stay at %s: %s", self._server.url, error)
        finally:
            await self._api.aclose()

    def _check_slots(self, names: Sequence[str] | set[str]) -> None:
        """Refuse a server that cannot hold some adapters and the next version of one of them."""
        needed = len(names) + 1
        if self._slots is not None and self._slots < needed:
            raise AdapterError(
                f"{self._server.url} has {self._slots} slots for adapters, and this run needs "
                f"{needed}, one for each of {', '.join(sorted(names))} and one for the next "
                f"version; start the server with --max-loras {needed} or more"
            )

    async def _load(self, served: ServedModel, adapter: Adapter) -> None:
        """Load an adapter, or find it loaded, and check what the server computes with it.

        Raises:
            AdapterError: the server refuses it, or computes something else.
            EndpointError: the server fails.
            EngineError: the server has another base model than before.
        """
        await self._check_base()
        place = str(self._folders.place(served))
        await self._api.load(served.model, place, base_model=self._live.base_model)
        try:
            found = await self._logprobs(served.model)
            await asyncio.to_thread(self._probe.check, adapter, found, server=self._server.url)
        except AdapterError:
            await self._api.unload(served.model)
            raise

    async def _check_base(self) -> None:
        """Refuse a server that was started again with another base model.

        Raises:
            EngineError: it was; the message names both models.
            EndpointError: the server fails.
        """
        found = await self._base_model()
        if found != self._base:
            raise EngineError(
                f"the vLLM server at {self._server.url} had base model {self._base} and has come "
                f"back with {found}; start it again with the former model, and resume the run"
            )

    async def _base_model(self) -> str:
        base = await self._api.base()
        return f"{base.id!r} ({base.root or ''})"

    async def _logprobs(self, model: str) -> NDArray[np.float64]:
        return await self._api.logprobs(model, self._probe.prompt, self._probe.watched)

    async def _retire(self) -> None:
        """Unload replaced adapters that no request uses, and remove folders of earlier ones."""
        for served in self._live.unused():
            await self._live.recovery.persist(lambda model=served.model: self._api.unload(model))
            self._adapters.pop(served.model, None)
            self._unloaded.append(served.model)
        while len(self._unloaded) > KEPT_FOLDERS:
            await asyncio.to_thread(self._folders.remove, self._unloaded.popleft())

    async def _mend(self, failure: Exception) -> None:
        """Wait for the server, and load what is live into it again."""
        logger.warning("the vLLM server fails (%s); waiting until it answers again", failure)
        while self._failures < MOST_FAILURES:
            self._failures += 1
            await self._server.come_back(failure)
            try:
                lost = await self._reload()
            except AdapterError as error:
                raise EngineError(
                    f"the vLLM server with base model {self._base} came back changed: {error}"
                ) from error
            except EndpointError as error:
                failure = error
                await asyncio.sleep(AGAIN_S)
            else:
                logger.warning("the vLLM server answers again; %d adapters were loaded", lost)
                return
        raise EngineError(
            f"the vLLM server at {self._server.url} failed {MOST_FAILURES} times since the last "
            f"adapter was published; the last time: {failure}"
        )

    async def _reload(self) -> int:
        """Load what is live and not loaded, check all of it, and return how many were lost."""
        listed = await self._api.listed()
        await self._check_base()
        await self._logprobs(self._live.base_model)
        live = list(self._live.loaded())
        for served in live:
            await self._load(served, self._adapters[served.model])
        return sum(served.model not in listed for served in live)
