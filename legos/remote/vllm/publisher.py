"""Publish adapters to one vLLM server."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from legos.clients.pool import all_done
from legos.errors import (
    AdapterError,
    DeviceError,
    EndpointError,
    EngineError,
    ModelError,
    NotFoundError,
    RequestError,
)
from legos.remote.process import ServerProcess
from legos.remote.vllm.api import VllmApi
from legos.remote.vllm.live import LiveAdapters, ServedModel
from legos.remote.vllm.probe import Probe
from legos.remote.vllm.served import AdapterFolders
from legos.weights.adapter import Adapter, AdapterInfo

logger = logging.getLogger(__name__)
KEPT_FOLDERS = 8  # of unloaded adapters: vLLM may still read one for a request that was aborted


class VllmPublisher:
    """Loads each version of an adapter under a name of its own, and checks it before it is used.

    A version is announced to the requests (``live``) once its log-probabilities at the server are
    the trainer's. A replaced version is unloaded with the first publication after its last request
    has ended, while the new one is written. All methods belong to one event loop.

    Attributes:
        api: the server.
        live: the adapters that requests use.
    """

    def __init__(
        self,
        server: str | ServerProcess,
        probe: Probe,
        *,
        names: Sequence[str],
        folder: Path | None = None,
        api_key: str | None = None,
    ) -> None:
        """Make a publisher; nothing is sent before ``start``.

        Args:
            server: the address of the server, or a process of ours.
            probe: what the trainer computes.
            names: names of the adapters that will be live at the same time.
            folder: where the adapters are written, which the server sees under the same path; None:
                the system's folder for temporary files.
            api_key: bearer token.
        """
        self._process = None if isinstance(server, str) else server
        self.api = VllmApi(server if isinstance(server, str) else server.url, api_key=api_key)
        self.live = LiveAdapters()
        self._folders = AdapterFolders(folder)
        self._probe = probe
        self._names = names
        self._base = ""  # the server's name of the base model
        self._slots: int | None = None  # adapters that can answer at once; None: not known
        self._most = 0  # adapters that were live at once, where they exceeded the slots
        self._unloaded: deque[str] = deque()  # names whose folders still exist
        self._publishing = asyncio.Lock()

    async def start(self) -> None:
        """Check the server with an adapter.

        Raises:
            AdapterError: the server has no LoRA, too small a rank, too few slots, ignores the
                adapter, or has another model; the message names the flag.
            ModelError: the server reports log-probabilities of another distribution than it samples
                from.
            EngineError: the server does not answer, or not as vLLM does.
        """
        first = await asyncio.to_thread(self._probe.first_adapter)
        served = ServedModel(model=self._folders.model(first), adapter=first)
        await self._folders.write(first)
        try:
            self._base = await self.api.base()
            self.live.announce(ServedModel(model=self._base, adapter=None))
            await self._check_sampler()
            await self._load(served)
            self._slots = await self.api.slots()
            await self.api.unload(served.model)
        except (EndpointError, RequestError) as error:
            raise EngineError(f"{self.api.url}: {error}") from error
        self._unloaded.append(served.model)
        self._check_slots(self._names)

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; return once requests use it.

        Raises:
            AdapterError: the server rejects it or computes something else, or its version was
                published with other weights.
            EngineError: the server failed.
        """
        info = adapter.info
        async with self._publishing:
            former = self._published(info.name)
            if former is not None and former.info == info:
                return info
            if former is not None and former.version == info.version:
                raise AdapterError(
                    f"{info.name}@{info.version} is live with digest {former.digest}, not "
                    f"{info.digest}; give the new adapter a version of its own"
                )
            self._warn_of_slots({*filter(self._published, self.live.newest), info.name})
            served = ServedModel(model=self._folders.model(adapter), adapter=adapter)
            if served.model in self._unloaded:  # a snapshot that has come back
                self._unloaded.remove(served.model)
            with self.failures():
                await all_done([self._folders.write(adapter), self._retire(served.model)])
                await self._load(served)
            self.live.announce(served)
        return info

    async def drop(self, name: str) -> None:
        """Withdraw an adapter; running requests finish with it.

        Raises:
            AdapterError: no adapter of that name is live.
            EngineError: the server failed.
        """
        async with self._publishing:
            if self._published(name) is None:
                raise AdapterError(f"no adapter {name!r} is live in {self.api.url}")
            self.live.withdraw(name)
            with self.failures():
                await self._retire()

    async def restore(self, served: ServedModel) -> None:
        """Load an adapter again that the server has lost, because it was started again.

        Raises:
            EngineError: the server has another model than before, or other flags.
            EndpointError: the server failed.
        """
        async with self._publishing:
            if served.adapter is None or served.model in await self.api.listed():
                return  # another request has restored it
            try:
                await self._check_sampler()
                await self._load(served)
            except (AdapterError, ModelError) as error:
                raise EngineError(str(error)) from error
        logger.warning("%s has lost %s; it is loaded again", self.api.url, served.model)

    @contextmanager
    def failures(self) -> Generator[None]:
        """Within the block, a failure of the server ends the run.

        Raises:
            EngineError: the server failed; a ``DeviceError`` where it is a process of ours, so that
                a new process of the run starts it again.
        """
        try:
            yield
        except (EndpointError, NotFoundError) as error:  # or it has lost an adapter again
            if self._process is None:
                raise EngineError(
                    f"{error}; start the vLLM server at {self.api.url} again, and resume the run"
                ) from error
            raise DeviceError(f"{error}\n{self._process.end_of_log()}") from error

    async def aclose(self) -> None:
        """Unload all adapters of this run where the server answers, and close the connections."""
        try:
            for model in await self.api.listed():
                if self._folders.is_own(model):
                    await self.api.unload(model)
            self._folders.close()
        except (EndpointError, RequestError) as error:
            logger.info("adapters of this run stay at %s: %s", self.api.url, error)
        finally:
            await self.api.aclose()

    def _published(self, name: str) -> Adapter | None:
        """The adapter that is live under a name; None: none is, or the base model answers."""
        live = self.live.newest.get(name)
        return None if live is None else live.adapter

    def _warn_of_slots(self, names: Collection[str]) -> None:
        """Log once that a server has fewer slots than adapters, which it computes in turn."""
        if self._slots is not None and len(names) > max(self._slots, self._most):
            self._most = len(names)
            logger.warning(
                "%s has %d slots for the %d adapters that are live, and computes some in turn; "
                "--max-loras %d would be faster",
                *(self.api.url, self._slots, len(names), len(names) + 1),
            )

    def _check_slots(self, names: Collection[str]) -> None:
        """Refuse a server that cannot hold some adapters and the next version of one of them."""
        needed = len(names) + 1
        if self._slots is not None and self._slots < needed:
            raise AdapterError(
                f"{self.api.url} has {self._slots} slots for adapters, and this run needs "
                f"{needed}, one for each of {', '.join(sorted(names))} and one for the next "
                f"version; start the server with --max-loras {needed} or more"
            )

    async def _check_sampler(self) -> None:
        """See ``VllmApi.check_sampler``."""
        await self.api.check_sampler(self._base, self._probe.prompt, self._probe.watched[0])

    async def _load(self, served: ServedModel) -> None:
        """Load an adapter, or find it loaded, and check what the server computes with it.

        Raises:
            AdapterError: the server refuses it, or computes something else.
            EndpointError: the server fails.
        """
        model, adapter = served.model, served.adapter
        assert adapter is not None
        await self.api.load(model, str(self._folders.place(model)), base_model=self._base)
        try:
            found = await self.api.logprobs(model, self._probe.prompt, self._probe.watched)
            await asyncio.to_thread(self._probe.check, adapter, found, server=self.api.url)
        except AdapterError:
            await self.api.unload(model)
            raise

    async def _retire(self, new: str = "") -> None:
        """Unload replaced adapters that no request uses, and remove folders of earlier ones.

        Args:
            new: name at the server of what is loaded next, which may be one of them.
        """
        kept = {new, *(served.model for served in self.live.newest.values())}
        for served in self.live.unused():
            if served.model not in kept:
                await self.api.unload(served.model)
                self._unloaded.append(served.model)
        while len(self._unloaded) > KEPT_FOLDERS:
            await asyncio.to_thread(self._folders.remove, self._unloaded.popleft())
