"""The server's state: ``GET /health``, ``GET /metrics`` and ``GET /v1/models``."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from legos.errors import EngineError
from legos.records.names import BASE
from legos.server.problems import LONGEST_NAME, Problem
from legos.server.service import Service

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def state_router(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter()

    @router.get("/v1/models/", include_in_schema=False)
    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The base model and its adapters."""
        return {"object": "list", "data": _models(service)}

    @router.get("/v1/models/{model:path}")  # a name on the hub has a slash
    async def model(model: str) -> dict[str, Any]:
        """The base model or one adapter."""
        models = _models(service)
        found = {BASE: models[0], **{one["id"]: one for one in models}}.get(model)
        if found is None:
            named = model[:LONGEST_NAME]
            raise Problem(404, f"model {named!r} does not exist here", code="model_not_found")
        return found

    @router.get("/health")
    async def health() -> Response:
        """Whether the engine runs (live) and new requests are accepted (ready)."""
        reasons: list[str] = []
        try:
            service.engine.stats()
        except EngineError as error:
            reasons.append(str(error))
        live = not reasons
        if service.draining:
            reasons.append("the server is about to end")
        status = "ok" if not reasons else ("draining" if live else "dead")
        answer = {"status": status, "live": live, "ready": not reasons, "reasons": reasons}
        return JSONResponse(answer, status_code=503 if reasons else 200)

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def metrics() -> Response:
        """The metrics in the Prometheus format."""
        return Response(service.metrics.text(), media_type=_METRICS)

    return router


def _models(service: Service) -> list[dict[str, Any]]:
    """All models that a request can name, the base model first."""
    live = service.engine.adapters()
    common = {
        "object": "model",
        "created": service.started,
        "owned_by": "legos",
        "root": service.model,
        "max_model_len": service.context,
    }
    name = BASE if service.model in live else service.model
    base = {"id": name, "parent": None, "version": 0, "digest": None, **common}
    return [base] + [
        {"id": name, "parent": service.model, "version": one.version, "digest": one.digest} | common
        for name, one in sorted(live.items())
    ]
