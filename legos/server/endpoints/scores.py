"""``POST /v1/score``: log-probabilities of given answers, without sampling."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from legos.data.message import Message
from legos.server.middleware.bodies import JsonRoute
from legos.server.schemas.answers import Scores
from legos.server.schemas.sampling import check_choices
from legos.server.schemas.texts import ScoreBody
from legos.server.service import Service

__all__ = ["score_router"]


def score_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/score", response_class=Response, responses={200: {"model": Scores}})
    async def score(body: ScoreBody, request: Request) -> Response:
        """Log-probability (nats, temperature 1) of each choice as the complete answer."""
        for one in body.prompts:
            check_choices(one.choices)
        prompts = [
            ([Message(m.fields()["role"], m.text) for m in one.messages], one.choices)
            for one in body.prompts
        ]
        adapter = service.adapter_of(body.model, body.adapter)
        # The engine splits a scoring request into parts, so one of any size is admitted if no
        # other completion runs.
        most = service.options.max_running + service.options.max_queue
        with service.admitted(min(len(prompts), most)):
            work = service.source.score(prompts, adapter=adapter)
            scored = await service.attend(request.receive, work)
        return Response(msgspec.json.encode({"scores": scored}), media_type="application/json")

    return router
