"""``POST /v1/episodes`` and ``.../ID/reward``: programs that start their own episodes."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from legos.errors import ArenaError, RewardError
from legos.server.lobby import Lobby
from legos.server.middleware.bodies import JsonRoute
from legos.server.problems import Problem
from legos.server.schemas.episodes import (
    EndedEpisode,
    PlayedTask,
    RewardBody,
    StartBody,
    StartedEpisode,
)
from legos.server.service import Service

__all__ = ["episode_router"]


def episode_router(service: Service, lobby: Lobby) -> APIRouter:
    """The endpoints."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/episodes")
    async def start(body: StartBody, request: Request) -> StartedEpisode:
        """Start an episode: take a play that waits for a program."""
        offer = await service.attend(request.receive, lobby.start(body.wait_s))
        task = offer.task
        return StartedEpisode(
            id=offer.id,
            task=PlayedTask(id=task.id, seed=task.seed, data=_plain(task.data)),
            base_url=f"{str(request.base_url).rstrip('/')}/v1",
            api_key=next(iter(offer.keys.values())),
            api_keys=dict(offer.keys),
            timeout_s=offer.timeout_s,
        )

    @router.post("/v1/episodes/{episode}/reward")
    async def reward(episode: str, body: RewardBody) -> EndedEpisode:
        """End an episode with its rewards, or as failed."""
        offer = lobby.find(episode)
        try:
            if body.error is not None:
                offer.fail(body.error)
                return EndedEpisode(id=episode, rewards={})
            rewards = body.rewards or dict.fromkeys(offer.seats, body.reward)
            return EndedEpisode(id=episode, rewards=offer.post(rewards))
        except (ArenaError, RewardError) as error:
            raise Problem(400, str(error), param="rewards") from error

    return router


def _plain(data: Any) -> Any:
    """A task's data as JSON values; what JSON does not have becomes text."""
    return msgspec.json.decode(msgspec.json.encode(data, enc_hook=str))
