"""Samples with default fields and random adapters, for the checks of a device and for tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from legos.records.sample import Sample
from legos.weights.adapter import Adapter


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


def random_adapter(base: Adapter, *, name: str, version: int, size: float) -> Adapter:
    """An adapter of the shape of ``base`` with normal LoRA arrays of deviation ``size``."""
    rng = np.random.default_rng(sum(name.encode()) + version)
    arrays: dict[str, Any] = {
        key: np.asarray(size * rng.standard_normal(array.shape), np.float32)
        for key, array in base.arrays.items()
    }
    return replace(base, name=name, version=version, arrays=arrays)
