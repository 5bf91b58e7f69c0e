"""``POST /v1/engine/generate``: requests of our own processes, in MessagePack."""

import asyncio

import msgspec
from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import Response

from legos.clients.wire import MSGPACK, RequestBatch, batch_of
from legos.server.bodies import LONG
from legos.server.endpoints.generation import check_alternatives
from legos.server.endpoints.sampling import MOST_STOPS, check_choices, check_schema
from legos.server.problems import Problem
from legos.server.service import Service, together

__all__ = ["engine_router"]

MOST_ENDS = 256  # token ids that end a completion


def engine_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/engine/generate", include_in_schema=False)
    async def generate(request: Request) -> Response:
        """Sample the completions of a batch."""
        data = await request.body()
        batch = await asyncio.to_thread(batch_of, data) if len(data) > LONG else batch_of(data)
        _check(service, batch)
        count = len(batch.prompts)
        with service.admitted(count):
            common = await service.source.resolved(batch.request)
            work = [
                service.source.generate(replace(common, prompt_ids=prompt, seed=seed))
                for prompt, seed in zip(batch.prompts, batch.seeds, strict=True)
            ]
            results = await service.attend(request.receive, together(work))
        service.metrics.count(batch.prompts, results)
        return Response(msgspec.msgpack.encode(results), media_type=MSGPACK)

    return router


def _check(service: Service, batch: RequestBatch) -> None:
    """Check the sizes of what a batch asks for; the engine checks all else.

    Raises:
        Problem: the adapter is not live, or something is too large.
    """
    common = batch.request
    service.adapter_of(None, common.adapter)
    service.check_size(len(batch.prompts))
    check_choices(common.choice_texts)
    check_schema(common.json_schema)
    check_alternatives(len(batch.prompts) * common.num_alternatives * common.max_tokens)
    if len(common.stop) > MOST_STOPS or len(common.end_ids) > MOST_ENDS:
        raise Problem(400, f"a request has at most {MOST_STOPS} stop texts and {MOST_ENDS} ends")
