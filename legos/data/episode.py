"""What happened in a play: tasks, turns, rollouts, episodes."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from legos.data.message import Completion, Message

__all__ = ["Episode", "Failure", "Rollout", "Task", "Turn"]


class Task(Struct, frozen=True, kw_only=True):
    """One thing to play: a deal, a question, a start position."""

    id: str  # stable across runs; episodes of one id are compared with each other
    seed: int = 0  # of everything random in the play besides the models' own draws
    data: Any = None  # whatever the arena needs to play it


class Turn(Struct, frozen=True, kw_only=True):
    """One model call by one seat."""

    messages: tuple[Message, ...]  # what was asked, as text
    completion: Completion  # what was sampled
    move: str | None = None  # the parsed move, where the answer was one
    reward: float | None = None  # a reward of this turn alone
    legal: bool | None = None  # whether the answer was legal; None where any answer is


class Rollout(Struct, frozen=True, kw_only=True):
    """What one seat saw and said in one episode."""

    role: str
    seat: str  # who sat there: "policy", an adapter's name, a bot's name
    policy: str | None  # the trained adapter that its tokens belong to; None: never trained on
    turns: tuple[Turn, ...]

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of all turns."""
        return sum(len(turn.completion.token_ids) for turn in self.turns)

    @property
    def turn_rewards(self) -> float:
        """Sum of the rewards of its turns, without the reward of the play."""
        return sum(turn.reward or 0.0 for turn in self.turns)


Failure = Literal["failed", "timed_out", "endpoint"]
"""By its own error, by its time limit, or by an endpoint outside the kit that failed."""


class Episode(Struct, frozen=True, kw_only=True):
    """One finished play of a task, or one that failed (``error`` and ``failure`` set)."""

    arena: str
    task: Task
    rollouts: tuple[Rollout, ...]
    rewards: Mapping[str, float]  # role -> reward of the whole play
    seed: int = 0  # of the play: every draw at its table follows from it
    parts: Mapping[str, float] = field(default_factory=dict[str, float])  # named reward parts
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()  # free text for the replay
    error: str | None = None  # why the play failed; such an episode is counted, never trained on
    failure: Failure | None = None  # what made it fail; None: it did not
    void: bool = False  # ended by the arena as meaningless: counted, never trained on
    children: tuple["Episode", ...] = ()  # plays spawned by this one

    @property
    def num_tokens(self) -> int:
        """Sampled tokens that belong to a trained adapter, children included."""
        own = sum(r.num_tokens for r in self.rollouts if r.policy)
        return own + sum(child.num_tokens for child in self.children)
