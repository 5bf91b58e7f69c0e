"""Plays as JSON values: queued samples for a checkpoint, and episodes for people to read."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import fields, replace

from legos.chat.reply import split_thinking
from legos.records.episode import Episode, Rollout, Turn
from legos.records.message import Message, Sampling, ToolCall
from legos.records.sample import Group, Sample

__all__ = ["batches_from_json", "batches_to_json", "episode_to_json", "kept_episodes"]

logger = logging.getLogger(__name__)
_FIELDS = tuple(field.name for field in fields(Sample))
_OF_SEATS = ("temperature", "max_tokens", "stop")  # settings that are always written
_OF_TURNS = ("seed", "choices", "restrict")  # the seeds follow from the play's


def batches_to_json(batches: Sequence[Group], *, num_episodes: int = 0) -> list[dict[str, Any]]:
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


def batches_from_json(stored: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Restore the batches that ``batches_to_json`` stored, with the tokens of their samples."""
    batches: list[Group] = []
    for item in stored:
        samples = tuple(_sample(values) for values in item["samples"])
        batches.append(
            Group(
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
    """An episode for people and for the viewer: everything that its seats were shown and sampled.

    Of each turn's messages and prompt token ids, only those that do not continue the former turn
    of the seat; ``docs/run/runs.md`` describes the fields.
    """
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
        "seats": [_seat(rollout) for rollout in episode.rollouts],
        "children": [episode_to_json(child) for child in episode.children],
    }


def _seat(rollout: Rollout) -> dict[str, Any]:
    """A seat with its turns, each with what is new since the one before."""
    always = {name: getattr(rollout.sampling, name) for name in _OF_SEATS}
    before = (None, *rollout.turns)
    return {
        "role": rollout.role,
        "seat": rollout.seat,
        "policy": rollout.policy,
        "sampling": always | _settings(rollout.sampling, Sampling()),
        "turns": [
            _turn(turn, former, rollout.sampling)
            for turn, former in zip(rollout.turns, before, strict=False)
        ],
    }


def _turn(turn: Turn, former: Turn | None, of_seat: Sampling) -> dict[str, Any]:
    said, asked = turn.completion, turn.messages[-1]
    messages, ids = ((), ()) if former is None else _before(former)
    kept = _num_common(messages, turn.messages[:-1])
    kept_ids = _num_common(ids, said.prompt_ids)
    return {
        "messages_kept": kept,
        "messages": [_message(message) for message in turn.messages[kept:-1]],
        "asked_as": asked.role,
        "asked": asked.content,
        "choices": list(turn.choices),
        "restricted": said.restricted,
        "sampling": {} if turn.sampling is None else _settings(turn.sampling, of_seat),
        "said": said.text,
        "tool_calls": _calls(said.tool_calls),
        "move": turn.move,
        "legal": turn.legal,
        "reward": turn.reward,
        "order": turn.order,
        "asked_at": round(turn.asked_at, 3),
        "answered_at": round(turn.answered_at, 3),
        "finish_reason": said.finish_reason,
        "prompt_ids_kept": kept_ids,
        "prompt_ids": list(said.prompt_ids[kept_ids:]),
        "token_ids": list(said.token_ids),
        "logprobs": [float(f"{logprob:.9g}") for logprob in said.logprobs],  # exact as float32
        "versions": list(said.versions),
    }


def _before(former: Turn) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """The messages and the token ids after a turn, with which the next may begin."""
    said = former.completion
    answer = Message("assistant", split_thinking(said.text)[1], said.tool_calls)
    return (*former.messages, answer), said.prompt_ids + said.token_ids


def _num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Number of first items that two sequences have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((index for index, (a, b) in pairs if a != b), shorter)


def _message(message: Message) -> dict[str, Any]:
    calls = {"tool_calls": _calls(message.tool_calls)} if message.tool_calls else {}
    return {"role": message.role, "content": message.content, **calls}


def _calls(calls: Sequence[ToolCall]) -> list[list[str]]:
    return [[call.name, call.arguments] for call in calls]


def _settings(sampling: Sampling, usual: Sampling) -> dict[str, Any]:
    """Settings that differ, without those that a turn has under other names, and its seed."""
    found: dict[str, Any] = msgspec.to_builtins(sampling)
    others: dict[str, Any] = msgspec.to_builtins(usual)
    return {
        name: value
        for name, value in found.items()
        if name not in _OF_TURNS and value != others[name]
    }


def _without_data(episode: Episode) -> Episode:
    """An episode without the data of its tasks, which may have any type."""
    children = tuple(_without_data(child) for child in episode.children)
    return replace(episode, task=replace(episode.task, data=None), children=children)


def _sample(values: Sequence[Any]) -> Sample:
    if len(values) == len(_FIELDS) + 1:  # older checkpoints have a share of the entropy bonus
        values = [*values[:-2], values[-1]]
    return Sample(**{name: _tuples(value) for name, value in zip(_FIELDS, values, strict=True)})


def _tuples(value: Any) -> Any:
    """Convert JSON lists back to tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in cast("list[Any]", value))
    return value
