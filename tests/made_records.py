"""Make tasks, turns and episodes with default fields, for tests that set only some of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.message import Completion, Message
from legos.records.names import POLICY

__all__ = ["make_episode", "make_turn", "numbered_tasks"]


def numbered_tasks() -> Iterator[Task]:
    """Tasks without data and without end, none twice."""
    return (Task(id=f"{number}") for number in count())


def make_turn(
    prompt_ids: Sequence[int] = (1, 2),
    token_ids: Sequence[int] = (3,),
    *,
    logprob: float = -1.0,
    version: int = 0,
    reward: float | None = None,
    restricted: bool = False,
    temperature: float = 1.0,
) -> Turn:
    """Make a turn that can be trained on."""
    count = len(token_ids)
    completion = Completion(
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(token_ids),
        logprobs=(logprob,) * count,
        versions=(version,) * count,
        text="".join(map(chr, token_ids)),
        finish_reason="stop",
        legal=tuple((token,) for token in token_ids) if restricted else (),
        restricted=restricted,
        temperature=temperature,
    )
    return Turn(messages=(Message("user", "?"),), completion=completion, reward=reward)


def make_episode(
    rewards: Mapping[str, float],
    *,
    task: str = "task",
    arena: str = "arena",
    turns: Mapping[str, Sequence[Turn]] | None = None,
    untrained: Sequence[str] = (),
    error: str | None = None,
) -> Episode:
    """Make an episode with one turn for every rewarded role, unless ``turns`` is given.

    Args:
        rewards: role -> reward.
        task: id of the task.
        arena: name of the arena.
        turns: role -> its turns.
        untrained: roles that the policy did not play.
        error: why the play failed.
    """
    said = turns or {role: (make_turn(),) for role in rewards}
    return Episode(
        arena=arena,
        task=Task(id=task),
        rollouts=tuple(
            Rollout(
                role=role,
                seat="bot" if role in untrained else POLICY,
                policy=None if role in untrained else POLICY,
                turns=tuple(of_role),
            )
            for role, of_role in said.items()
        ),
        rewards=rewards,
        error=error,
        failure=None if error is None else "failed",
    )
