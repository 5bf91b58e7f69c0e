"""Samples that wait at a checkpoint, as JSON values and back."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import fields

from legos.data.sample import Sample, TrainingBatch

__all__ = ["batches_from_json", "batches_to_json"]

_FIELDS = tuple(field.name for field in fields(Sample))


def batches_to_json(batches: Sequence[TrainingBatch]) -> list[dict[str, Any]]:
    """Samples and metrics of batches; their episodes are in the run folder already."""
    return [
        {
            "samples": [[getattr(sample, name) for name in _FIELDS] for sample in batch.samples],
            "metrics": dict(batch.metrics),
        }
        for batch in batches
    ]


def batches_from_json(stored: Sequence[Mapping[str, Any]]) -> list[TrainingBatch]:
    """Take back what ``batches_to_json`` returned; their tokens count as generated already."""
    batches: list[TrainingBatch] = []
    for item in stored:
        samples = tuple(_sample(values) for values in item["samples"])
        tokens = sum(len(sample.positions) for sample in samples)
        batches.append(
            TrainingBatch(
                samples=samples, episodes=(), tokens_generated=tokens, metrics=item["metrics"]
            )
        )
    return batches


def _sample(values: Sequence[Any]) -> Sample:
    return Sample(**{name: _tuples(value) for name, value in zip(_FIELDS, values, strict=True)})


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in cast("list[Any]", value))
    return value
