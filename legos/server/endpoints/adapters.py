"""Endpoints that load, list and drop adapters while other requests run."""

import asyncio
import logging
import time
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from legos.data.names import POLICY
from legos.server.endpoints.uploads import Named, from_folder, parse_load, read_json_load
from legos.server.middleware.bodies import JsonRoute
from legos.server.problems import GoneError, Problem
from legos.server.schemas.adapters import BYTES, JSON, LOAD_BODY, VllmLoad, VllmUnload
from legos.server.schemas.answers import AdapterList, LiveAdapter, LoadedAdapter
from legos.server.service import Service
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["adapter_router"]

logger = logging.getLogger("legos.server")


def adapter_router(service: Service, *, default_scale: float | None) -> APIRouter:
    """The endpoints for adapters.

    Args:
        service: the application's state.
        default_scale: LoRA's multiplier if neither the file nor the request states one.
    """
    router = APIRouter(route_class=JsonRoute)
    desk = _Desk(service, default_scale)

    @router.post(
        "/adapters/load",
        responses={200: {"model": LoadedAdapter}},
        response_class=Response,
        openapi_extra={"requestBody": LOAD_BODY},
    )
    async def load(
        request: Request,
        name: str | None = None,
        version: Annotated[int | None, Query(ge=0)] = None,
        scale: float | None = None,
        rank: Annotated[int | None, Query(ge=1)] = None,
    ) -> Response:
        """Load an adapter; the body is JSON, or a safetensors file."""
        given = Named(name=name, version=version, scale=scale, rank=rank)
        return Response(msgspec.json.encode(await desk.load(request, given)), media_type=JSON)

    @router.get("/adapters/version")
    async def versions(name: str = POLICY) -> AdapterList:
        """Version and digest of the named adapter (default: the policy), and of all adapters."""
        live = service.engine.adapters()
        listed = [LiveAdapter(**_live(live[key])) for key in sorted(live)]
        if name not in live and name != POLICY:
            raise _unknown(name)
        one = live.get(name, AdapterInfo(name=name, version=0, digest=""))
        return AdapterList(adapters=listed, **_live(one))

    @router.delete("/adapters/{name}", responses={200: {"model": LiveAdapter}})
    async def drop(name: str, request: Request) -> LiveAdapter:
        """Drop an adapter."""
        return LiveAdapter(**_live(await desk.drop(request, name)))

    @router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
    async def vllm_load(body: VllmLoad, request: Request) -> str:
        """Load an adapter from a folder, in vLLM's format."""
        name = body.lora_name
        if name in service.engine.adapters() and not body.load_inplace:
            raise Problem(
                400, f"adapter {name!r} is loaded already; set load_inplace to replace it"
            )
        folder = service.options.adapter_folder
        adapter = await asyncio.to_thread(from_folder, body.lora_path, folder, Named(name=name))
        await desk.make_live(request, adapter)
        return f"Success: LoRA adapter '{name}' added successfully."

    @router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
    async def vllm_unload(body: VllmUnload, request: Request) -> str:
        """Drop an adapter, in vLLM's format."""
        await desk.drop(request, body.lora_name)
        return f"Success: LoRA adapter '{body.lora_name}' removed successfully."

    return router


class _Desk:
    """The actions behind the endpoints."""

    def __init__(self, service: Service, default_scale: float | None) -> None:
        self._service = service
        self._default_scale = default_scale
        self._coming: list[str] = []  # names of adapters that are being loaded

    async def load(self, request: Request, given: Named) -> dict[str, Any]:
        """Read a body and load the adapter in it; returns the answer.

        Raises:
            Problem: the content type is not supported, or the body is invalid.
            AdapterError: the adapter does not fit the model; loaded adapters stay unchanged.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, BYTES):
            raise Problem(415, f"content-type is {kind!r}; expected {JSON} or {BYTES}")
        body = await _body(request)
        adapter = await asyncio.to_thread(self._parse, kind, body, given)
        return await self.make_live(request, adapter)

    async def make_live(self, request: Request, adapter: Adapter) -> dict[str, Any]:
        """Send an adapter to the engine and wait until it is loaded.

        Returns:
            The loaded adapter, with a warning if it replaces a later version.
        """
        service, name = self._service, adapter.name
        if name == service.model:
            raise Problem(400, f"{name!r} is the base model's name")
        adapter.check_base(service.model)
        before = service.engine.adapters().get(name)
        started = time.perf_counter()
        with self._place_for(name):
            info = await self._wait(request, service.engine.load_adapter(adapter))
        service.metrics.swaps.labels(name).inc()
        service.metrics.swap_s.observe(time.perf_counter() - started)
        if before is None or before.version <= info.version:
            return _live(info)
        warning = f"version {info.version} replaces the later version {before.version}"
        logger.warning("adapter %r: %s", name, warning)
        return {**_live(info), "warning": warning}

    @contextmanager
    def _place_for(self, name: str) -> Generator[None]:
        """Within the block, a name counts as a loaded adapter.

        Raises:
            Problem: 409, if this exceeds the maximum number of adapters.
        """
        most = self._service.options.max_adapters
        if len({*self._service.engine.adapters(), *self._coming, name}) > most:
            raise Problem(
                409,
                f"{most} adapters are live, which is all that --max-adapters allows; drop one "
                "with DELETE /adapters/NAME, or load this one under the name of another",
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
        info = self._service.engine.adapters().get(name)
        if info is None:
            raise _unknown(name)
        await self._wait(request, self._service.engine.drop_adapter(name))
        self._service.metrics.forget(name)
        return info

    async def _wait(self, request: Request, future: "Future[Any]") -> Any:
        async def result() -> Any:
            return await asyncio.wrap_future(future)

        try:
            return await self._service.attend(request.receive, result())
        except GoneError as error:  # the client cannot read this
            raise Problem(499, "the client has gone") from error

    def _parse(self, kind: str, body: bytearray, given: Named) -> Adapter:
        """The adapter that a body contains or names; called on a thread."""
        data = body
        if kind == JSON:
            named, data = read_json_load(body)
            said = {k: v for k, v in msgspec.structs.asdict(given).items() if v is not None}
            given = msgspec.structs.replace(named, **{"weights": None, **said})
        if given.path is not None:
            if data:
                raise Problem(400, "give weights or a path, not both", param="path")
            return _with_digest(
                from_folder(given.path, self._service.options.adapter_folder, given)
            )
        return _with_digest(parse_load(data, given, default_scale=self._default_scale))


def _with_digest(adapter: Adapter) -> Adapter:
    """Compute the digest here, on a thread, so that it does not block the event loop."""
    _ = adapter.digest
    return adapter


async def _body(request: Request) -> bytearray:
    """The whole body; memory grows as it arrives, whatever length its head states."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


def _live(info: AdapterInfo) -> dict[str, Any]:
    return {"name": info.name, "version": info.version, "digest": info.digest}


def _unknown(name: str) -> Problem:
    return Problem(404, f"adapter {name!r} is not live", code="adapter_not_found", param="name")
