"""``POST /v1/episodes`` and ``.../ID/reward``: programs that start their own episodes."""

from typing import Any, Self

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field, model_validator

from legos.errors import ArenaError
from legos.server.bodies import Body, JsonRoute, Text
from legos.server.matches import MatchQueue
from legos.server.problems import Problem
from legos.server.service import Service

Reward = float | dict[str, float]
"""A number, or the values of its named parts."""


class StartBody(Body):
    """``POST /v1/episodes``."""

    wait_s: float = Field(30.0, ge=0, le=600, description="Seconds to wait for an episode.")


class RewardBody(Body):
    """``POST /v1/episodes/ID/reward``: one of the three fields."""

    reward: Reward | None = Field(None, description="The reward of every role.")
    rewards: dict[str, Reward] | None = Field(None, description="Role to reward.")
    error: Text | None = Field(None, description="Why the episode failed; it is not trained on.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.reward, self.rewards, self.error)) != 1:
            raise ValueError("give one of reward, rewards and error")
        return self


def episode_router(service: Service, matches: MatchQueue) -> APIRouter:
    """The endpoints."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/episodes")
    async def start(body: StartBody, request: Request) -> dict[str, Any]:
        """Start an episode: take a play that waits for a program."""
        waiting = matches.start(body.wait_s)
        offer = await service.attend(request.receive, waiting, wait_s=body.wait_s)
        task = offer.task
        return {
            "id": offer.id,
            "task": {"id": task.id, "seed": task.seed, "data": _plain(task.data)},
            "base_url": f"{str(request.base_url).rstrip('/')}/v1",
            "api_key": next(iter(offer.keys.values())),  # of the first role
            "api_keys": dict(offer.keys),
            "timeout_s": offer.timeout_s,  # from now to the reward
        }

    @router.post("/v1/episodes/{episode}/reward")
    async def reward(episode: str, body: RewardBody, request: Request) -> dict[str, Any]:
        """End an episode with its rewards, or as failed."""
        offer = matches.find(episode)
        seat = request.scope["seat"]
        if seat is not None and seat not in offer.seats.values():
            raise Problem(403, "the key belongs to a seat of another play; give one of api_keys")
        try:
            if body.error is not None:
                offer.fail(body.error)
                return {"id": episode, "rewards": {}}
            rewards = body.rewards or dict.fromkeys(offer.seats, body.reward)
            return {"id": episode, "rewards": offer.post(rewards)}
        except ArenaError as error:
            raise Problem(400, str(error), param="rewards") from error

    return router


def _plain(data: Any) -> Any:
    """A task's data as JSON values; what JSON does not have becomes text."""
    return msgspec.json.decode(msgspec.json.encode(data, enc_hook=str))
