"""Random samples, and batches in double precision, for the tests of losses and backends."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Literal

import numpy as np

from legos.fakes import make_sample
from legos.records.batch import Batch
from legos.records.sample import Sample

__all__ = ["Support", "float64", "random_samples"]

Support = Literal["open", "legal", "restricted", "mixed"]
"""Which tokens could be chosen: unknown, known legal ones, only the legal ones, or any of these by
sample."""


def random_samples(
    rng: np.random.Generator,
    *,
    num_samples: int = 6,
    vocab: int = 7,
    max_length: int = 6,
    support: Support = "mixed",
    temperatures: Sequence[float] = (0.5, 1.0, 2.0),
) -> list[Sample]:
    """Make samples with random tokens and numbers; about half share the row of another sample.

    Args:
        rng: random generator.
        num_samples: number of samples.
        vocab: vocabulary size, at least 3; token ids are below it.
        max_length: maximum length of a sample, tokens.
        support: which legal tokens are known, and whether sampling was restricted to them.
        temperatures: temperatures from which each sample gets one at random.
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
