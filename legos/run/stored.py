"""Plays as JSON values: queued samples for a checkpoint, and episodes for people to read."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import fields, replace

from legos.data.episode import Episode
from legos.data.sample import Sample, TrainingBatch

__all__ = ["batches_from_json", "batches_to_json", "episode_to_json", "kept_episodes"]

logger = logging.getLogger(__name__)
_FIELDS = tuple(field.name for field in fields(Sample))


def batches_to_json(
    batches: Sequence[TrainingBatch], *, num_episodes: int = 0
) -> list[dict[str, Any]]:
    """Samples and metrics of batches, and the ``kept_episodes`` of each."""
    return [
        {
            "samples": [[getattr(sample, name) for name in _FIELDS] for sample in batch.samples],
            "metrics": dict(batch.metrics),
            "weights": dict(batch.weights),
            "num_tasks": batch.num_tasks,
            "arena": batch.arena,
            "episodes": [
                msgspec.to_builtins(_without_data(episode), enc_hook=float)  # NumPy's floats
                for episode in kept_episodes(batch.episodes, num_episodes)
            ],
        }
        for batch in batches
    ]


def kept_episodes(episodes: Sequence[Episode], number: int) -> list[Episode]:
    """The first episodes and all that failed; none if the number is 0."""
    return [e for index, e in enumerate(episodes) if number and (index < number or e.error)]


def batches_from_json(stored: Sequence[Mapping[str, Any]]) -> list[TrainingBatch]:
    """Restore the batches that ``batches_to_json`` stored, with the tokens of their samples."""
    batches: list[TrainingBatch] = []
    for item in stored:
        samples = tuple(_sample(values) for values in item["samples"])
        batches.append(
            TrainingBatch(
                samples=samples,
                episodes=_episodes(item.get("episodes", ())),
                tokens_generated=sum(len(sample.positions) for sample in samples),
                metrics=item["metrics"],
                weights=item["weights"],
                num_tasks=item["num_tasks"],
                arena=item.get("arena", ""),
            )
        )
    return batches


def _episodes(stored: Sequence[Any]) -> tuple[Episode, ...]:
    """Restore episodes; returns none if a field holds a value of another type than declared."""
    try:
        return msgspec.convert(stored, tuple[Episode, ...])
    except msgspec.ValidationError as error:
        logger.warning("plays in the checkpoint will not be in the run's episodes: %s", error)
        return ()


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """An episode for people and for the viewer: prompts, replies and rewards."""
    return {
        "arena": episode.arena,
        "task": episode.task.id,
        "level": episode.task.level,
        "seed": episode.task.seed,
        "play_seed": episode.seed,
        "rewards": dict(episode.rewards),
        "reward_parts": {role: dict(parts) for role, parts in episode.parts.items()},
        "error": episode.error,
        "failure": episode.failure,
        "void": episode.void,
        "notes": list(episode.notes),
        "metrics": dict(episode.metrics),
        "seats": [
            {
                "role": rollout.role,
                "seat": rollout.seat,
                "policy": rollout.policy,
                "turns": [
                    {
                        "asked": turn.messages[-1].content,
                        "said": turn.completion.text,
                        "tool_calls": [
                            [call.name, call.arguments] for call in turn.completion.tool_calls
                        ],
                        "move": turn.move,
                        "legal": turn.legal,
                        "reward": turn.reward,
                        "order": turn.order,
                        "asked_at": round(turn.asked_at, 3),
                        "answered_at": round(turn.answered_at, 3),
                        "finish_reason": turn.completion.finish_reason,
                        "token_ids": list(turn.completion.token_ids),
                        "logprobs": [round(lp, 5) for lp in turn.completion.logprobs],
                        "versions": list(turn.completion.versions),
                    }
                    for turn in rollout.turns
                ],
            }
            for rollout in episode.rollouts
        ],
        "children": [episode_to_json(child) for child in episode.children],
    }


def _without_data(episode: Episode) -> Episode:
    """An episode without the data of its tasks, which may have any type."""
    children = tuple(_without_data(child) for child in episode.children)
    return replace(episode, task=replace(episode.task, data=None), children=children)


def _sample(values: Sequence[Any]) -> Sample:
    return Sample(**{name: _tuples(value) for name, value in zip(_FIELDS, values, strict=True)})


def _tuples(value: Any) -> Any:
    """Convert JSON lists back to tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in cast("list[Any]", value))
    return value
