"""The records of a play: tasks, turns, rollouts and episodes."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from legos.records.message import Completion, Message, Sampling


class Task(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """One thing to play: a deal, a question, a start position."""

    id: str  # stable across runs; episodes with the same id are compared with each other
    seed: int = 0  # seed for the arena's own randomness, not for the models' sampling
    data: Any = None  # any data that the arena needs to play it
    group_size: int | None = None  # plays of it, which are compared; None: the arena's number
    level: str | None = None  # one of the arena's levels, from which a curriculum chooses
    first_play: int | None = None  # in training: plays planned before its own; set when drawn


class Turn(Struct, frozen=True, kw_only=True, gc=False):
    """One model call by one seat."""

    messages: tuple[Message, ...]  # the prompt as messages
    completion: Completion  # the sampled completion
    move: str | None = None  # the parsed move, if the answer was legal
    reward: float | None = None  # reward of this turn only
    legal: bool | None = None  # whether the answer was legal; None if any answer is legal
    choices: tuple[str, ...] = ()  # the legal answers; empty: any answer is legal
    sampling: Sampling | None = None  # settings of the request, where it had others than the seat
    order: int = 0  # number of answers of all seats in the play before this one
    asked_at: float = 0.0  # Unix time when the seat was asked, seconds
    answered_at: float = 0.0  # Unix time when its answer had arrived, seconds


class Rollout(Struct, frozen=True, kw_only=True, gc=False):
    """The turns of one seat in one episode."""

    role: str
    seat: str  # name of the player in the seat: "policy", an adapter's or a bot's name
    policy: str | None  # the trained adapter that its tokens belong to; None: not trained on
    turns: tuple[Turn, ...]
    sampling: Sampling = field(default_factory=Sampling)  # settings of the seat's requests

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens of all turns."""
        number = 0
        for turn in self.turns:  # three times as fast as a sum of a list
            number += len(turn.completion.token_ids)
        return number

    @property
    def turn_rewards(self) -> float:
        """Sum of the rewards of single turns, without the reward of the play."""
        total = 0.0
        for turn in self.turns:
            if turn.reward:
                total += turn.reward
        return total

    def was_cut(self, turn: Turn) -> bool:
        """Whether the token limit cut an answer off; the length of the longest choice cuts none."""
        limit = (turn.sampling or self.sampling).max_tokens
        return turn.completion.finish_reason == "length" and limit is not None


Failure = Literal["failed", "timed_out", "endpoint"]
"""By its own error, by its time limit, or by an endpoint outside the kit that failed."""


class Episode(Struct, frozen=True, kw_only=True):
    """One finished play of a task, or one that failed (``error`` and ``failure`` set)."""

    arena: str
    task: Task
    rollouts: tuple[Rollout, ...]
    rewards: Mapping[str, float]  # role -> reward of the whole play
    seed: int = 0  # seed of the play, which determines every draw in it
    parts: Mapping[str, Mapping[str, float]] = {}  # role -> named reward part, before its weight
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()  # free text for the replay
    error: str | None = None  # why the play failed; such an episode is counted, not trained on
    failure: Failure | None = None  # kind of failure; None: the play did not fail
    void: bool = False  # True: the arena declared the play void; counted, not trained on
    children: tuple["Episode", ...] = ()  # plays spawned by this one
    parent: int | None = None  # seed of the play that spawned it

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens that belong to trained adapters, children included."""
        own = sum(r.num_tokens for r in self.rollouts if r.policy)
        return own + sum(child.num_tokens for child in self.children)

    @property
    def returns(self) -> Mapping[str, float]:
        """Role -> the reward of the play and those of its turns."""
        returns = dict(self.rewards)
        for rollout in self.rollouts:
            if rollout.role in returns:
                returns[rollout.role] += rollout.turn_rewards
        return returns

    def mean_return(self, roles: Sequence[str]) -> float:
        """Mean return of some roles."""
        return mean_of(self.returns, roles)

    @property
    def gave_up(self) -> list[str]:
        """The roles that forfeited the play, which its notes then say."""
        roles = self.rewards if self.notes else ()
        return [r for r in roles if any(n.startswith(f"{r} forfeits") for n in self.notes)]

    def rollout_name(self, role: str) -> str:
        """The name that the samples of a role's rollout carry."""
        return f"{self.arena}/{self.task.id}/{self.seed}/{role}"

    def untrained(self) -> "Episode":
        """The same episode with all seats marked as not trained, children included."""
        return replace(
            self,
            rollouts=tuple(replace(rollout, policy=None) for rollout in self.rollouts),
            children=tuple(child.untrained() for child in self.children),
        )

    def without_data(self) -> "Episode":
        """The same episode without the data of its tasks, which may have any type."""
        children = tuple(child.without_data() for child in self.children)
        return replace(self, task=replace(self.task, data=None), children=children)

    def result(self) -> "Episode":
        """How it ended, without what was said in it; its rewards are the returns."""
        return Episode(
            arena=self.arena,
            task=Task(id=self.task.id),
            rollouts=(),
            rewards=self.returns,
            notes=tuple(f"{role} forfeits" for role in self.gave_up),
            error=self.error,
            void=self.void,
        )


def mean_of(returns: Mapping[str, float], roles: Sequence[str]) -> float:
    """The mean return of some roles, of those of a play."""
    if len(roles) == 1:  # nearly always
        return returns[roles[0]]
    return sum([returns[role] for role in roles]) / len(roles)
