"""Make records with default fields, for tests that set only some of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.message import Completion, Message
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.weights.adapter import Adapter

__all__ = [
    "make_episode",
    "make_sample",
    "make_turn",
    "numbered_tasks",
    "random_adapter",
]


def make_sample(
    token_ids: Sequence[int] = (1, 2, 3),
    *,
    positions: Sequence[int] | None = None,
    logprobs: Sequence[float] | float = -1.0,
    versions: Sequence[int] | int = 0,
    advantages: Sequence[float] | float = 1.0,
    legal: Sequence[tuple[int, ...]] = (),
    restricted: bool = False,
    temperature: float = 1.0,
    group: str = "task",
    rollout: str = "",
    role: str = "player",
    truncated: bool = False,
) -> Sample:
    """Make a sample; its last token was chosen, unless ``positions`` names others.

    A single number is used for every chosen token; without ``legal``, legal tokens are unknown.
    """
    chosen = (len(token_ids) - 1,) if positions is None else tuple(positions)

    def each(value: Sequence[float] | float) -> tuple[float, ...]:
        return tuple(value) if isinstance(value, Sequence) else (value,) * len(chosen)

    return Sample(
        token_ids=tuple(token_ids),
        positions=chosen,
        logprobs=each(logprobs),
        versions=(versions,) * len(chosen) if isinstance(versions, int) else tuple(versions),
        advantages=each(advantages),
        legal=tuple(legal) or ((),) * len(chosen),
        restricted=restricted,
        temperature=temperature,
        group=group,
        rollout=rollout,
        role=role,
        truncated=truncated,
    )


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


def random_adapter(base: Adapter, *, name: str, version: int, size: float) -> Adapter:
    """An adapter of the shape of ``base`` with normal LoRA arrays of deviation ``size``."""
    rng = np.random.default_rng(sum(name.encode()) + version)
    arrays: dict[str, Any] = {
        key: np.asarray(size * rng.standard_normal(array.shape), np.float32)
        for key, array in base.arrays.items()
    }
    return replace(base, name=name, version=version, arrays=arrays)
