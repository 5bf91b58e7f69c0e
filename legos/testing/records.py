"""Make records with default fields, for tests that set only some of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from typing import Literal

import numpy as np

from legos.data.batch import Batch
from legos.data.episode import Episode, Rollout, Task, Turn
from legos.data.message import Completion, Message
from legos.data.names import POLICY
from legos.data.sample import Sample

__all__ = [
    "TIMES",
    "Support",
    "float64",
    "make_episode",
    "make_sample",
    "make_turn",
    "numbered_tasks",
    "random_samples",
]

TIMES = (
    "step_s",
    "play/moves_per_s",
    "play/tokens_per_s",
    "loop/seconds_per_step",
    "loop/lag_max_s",
    "loop/engine_idle_share",
    "loop/trainer_idle_share",
    "memory/peak_gib",
)
"""Metrics of a step that differ between two runs of the same settings and seed."""
Support = Literal["open", "legal", "restricted", "mixed"]
"""Which tokens could be chosen: unknown, known legal ones, only the legal ones, or any of these by
sample."""


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
    entropy_scale: float = 1.0,
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
        entropy_scale=entropy_scale,
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


def random_samples(
    rng: np.random.Generator,
    *,
    num_samples: int = 6,
    vocab: int = 7,
    max_length: int = 6,
    support: Support = "mixed",
    temperatures: Sequence[float] = (0.5, 1.0, 2.0),
    entropy_scales: Sequence[float] = (1.0,),
) -> list[Sample]:
    """Make samples with random tokens and numbers; about half share the row of another sample.

    Args:
        rng: random generator.
        num_samples: number of samples.
        vocab: vocabulary size, at least 3; token ids are below it.
        max_length: maximum length of a sample, tokens.
        support: which legal tokens are known, and whether sampling was restricted to them.
        temperatures: temperatures from which each sample gets one at random.
        entropy_scales: shares of the entropy bonus, which the samples get in turn.
    """
    samples: list[Sample] = []
    for index in range(num_samples):
        length = int(rng.integers(2, max_length + 1))
        row = rng.integers(vocab, size=length).tolist()
        if samples and rng.random() < 0.5:
            row = [*samples[int(rng.integers(len(samples)))].token_ids[:-1], row[-1]]
        count = int(rng.integers(1, len(row)))
        positions = sorted(rng.choice(np.arange(1, len(row)), count, replace=False).tolist())
        kinds = ("open", "legal", "restricted")
        kind = kinds[int(rng.integers(3))] if support == "mixed" else support
        legal = [
            tuple(sorted({row[p], *rng.choice(vocab, 2, replace=False).tolist()}))
            for p in positions
        ]
        samples.append(
            make_sample(
                row,
                positions=positions,
                logprobs=(-rng.uniform(0.2, 3.0, count)).tolist(),
                versions=rng.integers(3, size=count).tolist(),
                advantages=rng.normal(size=count).tolist(),
                legal=() if kind == "open" else legal,
                restricted=kind == "restricted",
                temperature=float(rng.choice(list(temperatures))),
                group=f"task {index % 2}",
                rollout=f"rollout {index // 2}",
                entropy_scale=entropy_scales[index % len(entropy_scales)],
            )
        )
    return samples


def float64(batch: Batch) -> Batch:
    """Convert a batch's float32 arrays to double precision, for finite differences."""
    floats = {
        field.name: getattr(batch, field.name).astype(np.float64)
        for field in fields(batch)
        if getattr(getattr(batch, field.name), "dtype", None) == np.float32
    }
    return replace(batch, **floats)
