"""The FastAPI application: chat completions, models, health."""

import time
import uuid
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from legos.errors import EngineError, RequestError
from legos.protocols import Client, Engine
from legos.server.chat import ChatAnswer, ChatRequest, answer_of

__all__ = ["make_app"]


def make_app(client: Client, engine: Engine) -> FastAPI:
    """Make the application.

    Args:
        client: answers the requests.
        engine: what the client asks; tells which adapters are live.
    """
    app = FastAPI(title="legos", description="A language model that is being trained by self-play.")
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(EngineError, _dead)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest) -> ChatAnswer:
        """Answer a chat."""
        completion = await client.complete(
            request.as_messages(), request.as_sampling(), adapter=request.model
        )
        return answer_of(completion, number=uuid.uuid4().hex, created=int(time.time()))

    @app.get("/v1/models")
    async def models() -> Mapping[str, object]:
        """The live adapters and their versions."""
        data = [
            {"id": name, "object": "model", "owned_by": "legos", "version": version}
            for name, version in engine.versions().items()
        ]
        return {"object": "list", "data": data}

    @app.get("/health")
    async def health() -> Mapping[str, str]:
        """Whether requests are answered."""
        return {"status": "ok"}

    return app


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """A request that cannot be served, in OpenAI's form."""
    if isinstance(error, RequestValidationError):
        problems = [
            f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}"
            for problem in error.errors()
        ]
        message = "; ".join(problems)
    else:
        message = str(error)
    return JSONResponse(_as_error(message, "invalid_request_error"), status_code=400)


async def _dead(_: Request, error: Exception) -> JSONResponse:
    """The engine cannot answer any more."""
    return JSONResponse(_as_error(str(error), "engine_error"), status_code=503)


def _as_error(message: str, kind: str) -> dict[str, dict[str, str]]:
    return {"error": {"message": message, "type": kind}}
