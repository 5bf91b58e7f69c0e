"""``GET /v1/models``: the base model and its adapters."""

from typing import Any

from fastapi import APIRouter

from legos.data.names import BASE
from legos.server.problems import Problem
from legos.server.schemas.answers import ModelList, OneModel
from legos.server.service import Service

__all__ = ["model_router"]


def model_router(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The base model and its adapters."""
        return ModelList(data=_models(service))

    @router.get("/v1/models/{model}")
    async def model(model: str) -> OneModel:
        """The base model or one adapter."""
        asked = service.model if model == BASE else model
        found = next((one for one in _models(service) if one.id == asked), None)
        if found is None:
            raise Problem(404, f"model {model!r} does not exist here", code="model_not_found")
        return found

    return router


def _models(service: Service) -> list[OneModel]:
    """All models that a request can name, the base model first."""
    common: dict[str, Any] = {
        "created": service.started,
        "owned_by": "legos",
        "root": service.model,
        "max_model_len": service.context,
    }
    live = service.engine.adapters()
    adapters = [
        OneModel(id=name, parent=service.model, version=one.version, digest=one.digest, **common)
        for name, one in sorted(live.items())
    ]
    return [OneModel(id=service.model, version=0, **common), *adapters]
