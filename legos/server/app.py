"""The FastAPI application: an OpenAI-compatible API, and adapters that are replaced at runtime."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, Response

from legos.chat.tokenizer import ChatTokenizer
from legos.chat.tools import PLAIN_TOOLS, ToolFormat
from legos.errors import LegosError
from legos.protocols import Engine
from legos.server.endpoints.adapters import adapter_router
from legos.server.endpoints.chat import chat_router
from legos.server.endpoints.completions import completion_router
from legos.server.endpoints.docs import docs_page
from legos.server.endpoints.health import health_router
from legos.server.endpoints.models import model_router
from legos.server.endpoints.scores import score_router
from legos.server.endpoints.tokens import token_router
from legos.server.middleware.access import Access
from legos.server.options import ServerOptions
from legos.server.problems import handle
from legos.server.schemas.answers import ProblemAnswer
from legos.server.service import Service, Source

__all__ = ["make_app", "service_of"]

logger = logging.getLogger(__name__)

_SUMMARY = (
    "A language model on this machine, whose LoRA adapters are loaded, replaced and dropped while "
    "it answers. OpenAI's interface, with token ids, log-probabilities and policy versions."
)
_PROBLEMS = (400, 401, 404, 413, 429, 503, 504)


def make_app(
    source: Source,
    engine: Engine,
    tokenizer: ChatTokenizer,
    *,
    model: str,
    context: int,
    tools: ToolFormat = PLAIN_TOOLS,
    lora_scale: float | None = None,
    options: ServerOptions | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        source: client that answers the requests, such as an ``EngineClient``.
        engine: engine that the source sends requests to; holds the adapters.
        tokenizer: tokenizer of the model.
        model: name of the base model.
        context: maximum length of prompt plus completion, in tokens.
        tools: format in which the model writes tool calls.
        lora_scale: LoRA's multiplier for a loaded adapter that does not state one.
        options: limits and access rules; None needs no key and uses the default limits.
    """
    options = options or ServerOptions()
    service = Service(
        source, engine, tokenizer, model=model, context=context, tools=tools, options=options
    )
    app = FastAPI(
        title="legos",
        description=_SUMMARY,
        docs_url=None,  # FastAPI's two pages load their scripts from the internet
        redoc_url=None,
        responses={status: {"model": ProblemAnswer} for status in _PROBLEMS},
    )
    app.state.service = service
    for error in (RequestValidationError, HTTPException, LegosError, UnicodeEncodeError):
        app.add_exception_handler(error, handle)
    app.add_exception_handler(Exception, _unexpected)
    app.include_router(chat_router(service), tags=["OpenAI"])
    app.include_router(completion_router(service), tags=["OpenAI"])
    app.include_router(adapter_router(service, default_scale=lora_scale), tags=["adapters"])
    app.include_router(model_router(service), tags=["state"])
    app.include_router(health_router(service), tags=["state"])
    app.include_router(token_router(service), tags=["texts"])
    app.include_router(score_router(service), tags=["texts"])

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi(), str(request.base_url).rstrip("/")))

    app.add_middleware(Access, service=service)
    if options.allowed_hosts:
        app.add_middleware(
            TrustedHostMiddleware, allowed_hosts=list(options.allowed_hosts), www_redirect=False
        )
    return app


def service_of(app: FastAPI) -> Service:
    """The state of an application of ``make_app``."""
    return app.state.service


async def _unexpected(request: Request, error: Exception) -> Response:
    """Answer 500 to an unexpected error; its details go to the log, not to the client."""
    return await handle(request, error)
