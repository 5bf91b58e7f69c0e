"""The FastAPI application: an OpenAI-compatible API, and adapters that are replaced at runtime."""

from collections.abc import Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse

from legos.errors import LegosError
from legos.server.access import Access
from legos.server.endpoints.adapters import adapter_router
from legos.server.endpoints.chat import chat_router
from legos.server.endpoints.completions import completion_router
from legos.server.endpoints.engine import engine_router
from legos.server.endpoints.episodes import episode_router
from legos.server.endpoints.state import state_router
from legos.server.endpoints.texts import text_router
from legos.server.problems import handle
from legos.server.service import Service

_SUMMARY = (
    "A language model on this machine, whose LoRA adapters are loaded, replaced and dropped while "
    "it answers. OpenAI's interface, with token ids, log-probabilities and policy versions."
)
_OF_SEATS = (chat_router, state_router)  # what programs that play seats need
_ROUTERS = (*_OF_SEATS, completion_router, adapter_router, text_router, engine_router)
_ERRORS = (
    RequestValidationError,
    HTTPException,
    ClientDisconnect,
    LegosError,
    UnicodeEncodeError,
)  # ``Access`` answers all others


def make_app(service: Service) -> FastAPI:
    """Make the application that answers with a model and its adapters."""
    app = FastAPI(
        title="legos",
        description=_SUMMARY,
        docs_url=None,  # FastAPI's two pages load their scripts from the internet
        redoc_url=None,
        exception_handlers=dict.fromkeys(_ERRORS, handle),
    )
    app.state.service = service
    for make_router in _OF_SEATS if service.seats_only else _ROUTERS:
        app.include_router(make_router(service))
    if service.matches is not None:
        app.include_router(episode_router(service, service.matches))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_page(app.openapi()))

    app.add_middleware(Access, service=service)
    return app


def _page(openapi: Mapping[str, Any]) -> str:
    """A list of the endpoints as HTML; it loads nothing, so it works without a network."""
    lines = [
        f"<tr><td><code>{method.upper()} {escape(path)}</code><td>"
        f"{escape(operation.get('description', ''))}"
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>legos</title><h1>legos</h1>"
        f"<p>{escape(_SUMMARY)}</p><table>{''.join(lines)}</table><p>Fields and examples: "
        "<a href='openapi.json'>openapi.json</a></p>"
    )


def service_of(app: FastAPI) -> Service:
    """The state of an application of ``make_app``."""
    return app.state.service
