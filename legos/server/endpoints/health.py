"""``GET /health`` and ``GET /metrics``: the server's state and its metrics."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from legos.errors import EngineError
from legos.server.schemas.answers import Health
from legos.server.service import Service

__all__ = ["health_router"]

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def health_router(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter()

    @router.get("/health", responses={200: {"model": Health}, 503: {"model": Health}})
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
        answer = Health(status=status, live=live, ready=not reasons, reasons=reasons)
        return JSONResponse(answer.model_dump(), status_code=503 if reasons else 200)

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def metrics() -> Response:
        """The metrics in the Prometheus format."""
        return Response(service.metrics.text(), media_type=_METRICS)

    return router
