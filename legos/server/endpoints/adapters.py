"""Endpoints that load, list and drop adapters while other requests run."""

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from legos.errors import AdapterError
from legos.records.names import POLICY
from legos.server.bodies import JsonRoute, content_type
from legos.server.endpoints.uploads import (
    AdapterFields,
    AdapterUpload,
    adapter_of,
    read_json_upload,
)
from legos.server.problems import LONGEST_NAME, Problem
from legos.server.service import Service
from legos.weights.adapter import Adapter, AdapterInfo

logger = logging.getLogger("legos.server")


JSON, BYTES = "application/json", "application/octet-stream"
_UPLOAD = {
    "required": True,
    "content": {
        JSON: {"schema": AdapterUpload.model_json_schema()},
        BYTES: {"schema": {"type": "string", "format": "binary"}},
    },
}


def adapter_router(service: Service) -> APIRouter:
    """The endpoints for adapters."""
    router = APIRouter(route_class=JsonRoute)
    loads = _Loads(service)

    @router.post("/adapters/load", openapi_extra={"requestBody": _UPLOAD})
    async def load(request: Request, query: Annotated[AdapterFields, Query()]) -> dict[str, Any]:
        """Load an adapter; the body is JSON, or a safetensors file."""
        return await loads.load(request, query)

    @router.get("/adapters/version")
    async def versions(name: str = POLICY) -> dict[str, Any]:
        """The named adapter (default: the policy), all adapters, and how many may be live."""
        live = service.engine.adapters()
        if name not in live and name != POLICY:
            raise _unknown(name)
        one = live.get(name, AdapterInfo(name=name, version=0, digest=""))
        listed = [asdict(info) for _, info in sorted(live.items())]
        most = service.options.max_adapters
        return {**asdict(one), "adapters": listed, "max_adapters": most}

    @router.delete("/adapters/{name}")
    async def drop(name: str, request: Request) -> AdapterInfo:
        """Drop an adapter."""
        return await loads.drop(request, name)

    return router


class _Loads:
    """The actions behind the endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._coming: list[str] = []  # names of adapters that are being loaded
        self._num_bytes = 0  # of the bodies of all uploads that have not been loaded yet
        # Its own threads, because the others may all tokenize long texts.
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="legos-adapter")

    async def load(self, request: Request, query: AdapterFields) -> dict[str, Any]:
        """Read a body and load the adapter in it.

        Raises:
            Problem: the content type is not supported, or the body is invalid.
            AdapterError: the adapter does not fit the model; loaded adapters stay unchanged.
        """
        kind = content_type(request, JSON, BYTES)
        with self._counted(query.name), self._buffered(request) as take:
            body = bytearray()  # grows with what arrives, whatever length the head states
            async for chunk in request.stream():
                take(len(chunk))
                body += chunk

            def parse() -> Adapter:
                upload, weights = (
                    read_json_upload(body) if kind == JSON else (AdapterUpload(), body)
                )
                upload = upload.model_copy(update=query.model_dump(exclude_none=True))
                return adapter_of(upload, weights, self._service)

            loop = asyncio.get_running_loop()
            return await self._make_live(request, await loop.run_in_executor(self._readers, parse))

    @contextmanager
    def _buffered(self, request: Request) -> Generator[Callable[[int], None]]:
        """Within the block, a body is in memory, whose bytes are counted as they arrive.

        The bodies of all uploads together may be as large as that of one.

        Raises:
            Problem: 429, if by its head or by what has arrived the body would exceed this.
        """
        most, counted = self._service.options.max_adapter_bytes, 0

        def check(num_bytes: int) -> None:
            if self._num_bytes + num_bytes > most:
                self._service.metrics.refused.labels("uploads").inc()
                raise Problem(
                    429,
                    f"the uploads that are being received and loaded have {self._num_bytes} bytes, "
                    f"and {num_bytes} more would exceed {most}; send this one again later",
                    code="uploads_full",
                    headers={"retry-after": "1"},
                )

        def take(num_bytes: int) -> None:
            nonlocal counted
            check(num_bytes)
            counted += num_bytes
            self._num_bytes += num_bytes

        check(int(request.headers.get("content-length", 0)))
        try:
            yield take
        finally:
            self._num_bytes -= counted

    async def _make_live(self, request: Request, adapter: Adapter) -> dict[str, Any]:
        """Send an adapter to the engine and wait until it is loaded.

        Returns:
            The loaded adapter, with a warning if it replaces a later version.
        """
        service, name = self._service, adapter.name
        if name == service.model:
            raise Problem(400, f"{name!r} is the base model's name")
        _check_free(service, name)
        adapter.check_base(service.model)
        before = service.engine.adapters().get(name)
        with self._counted(name):
            loaded = asyncio.wrap_future(service.engine.load_adapter(adapter))
            info = await service.attend(request.receive, loaded)
        if before is None or before.version <= info.version:
            return asdict(info)
        warning = f"version {info.version} replaces the later version {before.version}"
        logger.warning("adapter %r: %s", name, warning)
        return {**asdict(info), "warning": warning}

    @contextmanager
    def _counted(self, name: str | None) -> Generator[None]:
        """Within the block, a name counts as a loaded adapter; None: it is not known yet.

        Raises:
            Problem: 409, if this exceeds the maximum number of adapters.
        """
        if name is None:
            yield
            return
        most = self._service.options.max_adapters
        if len({*self._service.engine.adapters(), *self._coming, name}) > most:
            raise Problem(
                409,
                f"{most} adapters are live, which is all that --max-adapters allows; raise it, "
                "drop one with DELETE /adapters/NAME, load this one under the name of another, or "
                "keep fewer snapshots in the league of a run (league.snapshots)",
                code="too_many_adapters",
                headers={"x-should-retry": "false"},
            )
        self._coming.append(name)
        try:
            yield
        finally:
            self._coming.remove(name)

    async def drop(self, request: Request, name: str) -> AdapterInfo:
        """Have the engine drop an adapter."""
        service = self._service
        info = service.engine.adapters().get(name)
        if info is None:
            raise _unknown(name)
        _check_free(service, name)
        dropped = asyncio.wrap_future(service.engine.drop_adapter(name))
        await service.attend(request.receive, dropped)
        return info


def _check_free(service: Service, name: str) -> None:
    if name in service.reserved:
        raise AdapterError(
            f"adapter {name!r} is being trained here and only its trainer replaces it; load yours "
            "under another name"
        )


def _unknown(name: str) -> Problem:
    return Problem(
        404, f"adapter {name[:LONGEST_NAME]!r} is not live", code="adapter_not_found", param="name"
    )
