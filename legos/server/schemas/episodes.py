"""The bodies of the endpoints for programs that start their own episodes."""

from typing import Any, Self

from pydantic import Field, model_validator

from legos.server.schemas.schema import Body, Schema, Text

__all__ = ["EndedEpisode", "RewardBody", "StartBody", "StartedEpisode"]

Reward = float | dict[str, float]
"""A number, or the values of its named parts."""


class StartBody(Body):
    """``POST /v1/episodes``."""

    wait_s: float = Field(30.0, ge=0, le=600, description="Seconds to wait for an episode.")


class PlayedTask(Schema):
    """The task of an episode; episodes of the same id are compared with each other."""

    id: str
    seed: int
    data: Any = None


class StartedEpisode(Schema):
    """An episode, and the address and keys of its seats in OpenAI's protocol."""

    id: str
    task: PlayedTask
    base_url: str
    api_key: str = Field(description="The key of the first role.")
    api_keys: dict[str, str] = Field(description="Role to key.")
    timeout_s: float = Field(description="Seconds from now to the reward.")


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


class EndedEpisode(Schema):
    """An episode that has its reward; empty rewards: it failed."""

    id: str
    rewards: dict[str, float]
