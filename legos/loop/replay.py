"""A replay buffer: the newest samples, drawn at random with replacement, for off-policy losses."""

import random
from collections import deque
from collections.abc import Iterable

from legos.errors import ConfigError, TrainerError
from legos.records.sample import Sample

__all__ = ["ReplayBuffer"]


class ReplayBuffer:
    """Keeps the newest samples up to a capacity; a draw may contain a sample several times."""

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        """Make an empty buffer.

        Args:
            capacity: maximum number of samples; the oldest are removed beyond it.
            seed: seed of the draws.

        Raises:
            ConfigError: the capacity is below 1.
        """
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}; expected at least 1 sample")
        self._samples: deque[Sample] = deque(maxlen=capacity)
        self._rng = random.Random(seed)
        self._added = self._drawn = 0

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._samples)

    def add(self, samples: Iterable[Sample]) -> None:
        """Add samples, the newest last."""
        for sample in samples:
            self._samples.append(sample)
            self._added += 1

    def draw(self, number: int) -> tuple[Sample, ...]:
        """Draw samples uniformly, with replacement.

        Raises:
            TrainerError: the buffer is empty.
        """
        if not self._samples:
            raise TrainerError("the replay buffer is empty; add samples before the first draw")
        self._drawn += number
        return tuple(self._rng.choices(self._samples, k=number))

    def figures(self, version: int) -> dict[str, float]:
        """Counts of samples, added and drawn ones, and the mean age of the tokens in steps.

        Args:
            version: version of the policy that is trained.
        """
        ages = [version - v for sample in self._samples for v in sample.versions]
        found = {
            "samples": float(len(self._samples)),
            "added": float(self._added),
            "drawn": float(self._drawn),
            "reuse": self._drawn / self._added if self._added else 0.0,
        }
        return found | ({"age_mean": sum(ages) / len(ages)} if ages else {})
