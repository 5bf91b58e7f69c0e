"""``POST /v1/engine/generate``: requests of our own processes, in MessagePack."""

import asyncio
import math

import msgspec
from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import Response

from legos.clients.wire import MSGPACK, RequestBatch, batch_of
from legos.server.bodies import LONG, content_type
from legos.server.endpoints.generation import check_alternatives
from legos.server.endpoints.sampling import MOST_STOPS, check_choices, check_schema
from legos.server.problems import Problem
from legos.server.service import Service

MOST_ENDS = 256  # token ids that end a completion


def engine_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/engine/generate", include_in_schema=False)
    async def generate(request: Request) -> Response:
        """Sample the completions of a batch."""
        content_type(request, MSGPACK)
        data = await request.body()
        batch = await asyncio.to_thread(batch_of, data) if len(data) > LONG else batch_of(data)
        _check(service, batch)
        with service.admitted(len(batch.rows)):
            kinds = [await service.source.resolved(kind) for kind in batch.kinds]
            asked = [
                replace(kinds[kind], prompt_ids=prompt, seed=seed)
                for kind, prompt, seed in batch.rows
            ]
            work = service.source.generate(asked)  # the plays have limits of their own
            results = await service.attend(request.receive, work, wait_s=math.inf)
        return Response(msgspec.msgpack.encode(results), media_type=MSGPACK)

    return router


def _check(service: Service, batch: RequestBatch) -> None:
    """Check the sizes of what a batch asks for; the engine checks all else.

    Raises:
        Problem: the adapter is not live, or something is too large.
    """
    for kind in batch.kinds:
        service.adapter_of(None, kind.adapter)
        check_choices(kind.choice_texts)
        check_schema(kind.json_schema)
        if len(kind.stop) > MOST_STOPS or len(kind.end_ids) > MOST_ENDS:
            raise Problem(
                400, f"a request has at most {MOST_STOPS} stop texts and {MOST_ENDS} ends"
            )
    asked = [batch.kinds[kind] for kind, _, _ in batch.rows]
    check_alternatives(sum(one.num_alternatives * one.max_tokens for one in asked))
