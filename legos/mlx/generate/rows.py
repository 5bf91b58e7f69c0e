"""The decoding batch: its rows, the sequences of each row, and their key-value cache."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from legos.mlx.generate.batch_cache import evaluate, is_full, select_rows, set_growth
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.sampling.sampler import Draws, Row, Sampler
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.model.forward import CausalModel

__all__ = ["DecodingRows", "Fork", "LaunchedStep"]

EVALUATED_EVERY = 32  # steps
Fork = tuple[int, list[SequenceState]]
"""Sequences that drew the same token in one row, and the index of that row."""


@dataclass(slots=True)
class LaunchedStep:
    """One more token of every row, which the device may still compute.

    The next step can be launched from its tokens before they are read. A row of which the host then
    learns that it had ended already is removed here, so its token is never read.
    """

    rows: list[Row]  # [B] the rows, in the order of the batch
    versions: list[int]  # [B] policy version that computes each row
    draws: Draws

    def keep(self, indices: Sequence[int]) -> None:
        """Remove all other rows; every row must have one sequence."""
        self.rows = [(None, self.rows[old][1], new) for new, old in enumerate(indices)]
        self.versions = [self.versions[index] for index in indices]
        self.draws = self.draws.keep(indices)


class DecodingRows:
    """Rows of a batch cache; the sequences of one row have the same tokens.

    Attributes:
        cache: one batch cache per layer; empty where there is no row.
        rows_computed: number of rows computed by the model so far.
    """

    def __init__(self, slots: AdapterSlots, max_rows: int) -> None:
        self._slots = slots
        self._max_rows = max_rows
        self._sequences: list[list[SequenceState]] = []
        self.cache: list[Any] = []
        self._steps = 0
        self.rows_computed = 0

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def room(self) -> int:
        """Number of rows that may join."""
        return max(self._max_rows - len(self._sequences), 0)

    @property
    def longest(self) -> int:
        """Tokens of the longest row whose tokens are read; 0 without rows."""
        firsts = (sequences[0] for sequences in self._sequences)
        return max((len(m.request.prompt_ids) + len(m.tokens) for m in firsts), default=0)

    @property
    def sequences(self) -> set[SequenceState]:
        """All sequences that are decoded."""
        return {one for sequences in self._sequences for one in sequences}

    def listed(self) -> list[Row]:
        """Every row in the sampler's format, without a key, which would copy all its tokens."""
        return [(None, sequences, index) for index, sequences in enumerate(self._sequences)]

    def launch(
        self, forward: CausalModel, sampler: Sampler, unread: LaunchedStep | None
    ) -> LaunchedStep:
        """Start to compute one more token of every row; adds the last one to the cache.

        Args:
            forward: the model.
            sampler: samples the tokens.
            unread: the step before, whose rows have one sequence each, if it is not read yet.
        """
        if unread is None:
            last = mx.array([sequences[0].tokens[-1] for sequences in self._sequences])
        else:
            last = unread.draws.tokens
        self.rows_computed += len(self._sequences)
        self._steps += 1
        if self._steps % EVALUATED_EVERY == 0:
            evaluate(self.cache)
        lives = [sequences[0].live for sequences in self._sequences]
        if is_full(self.cache):
            coming = (one.remaining for sequences in self._sequences for one in sequences)
            set_growth(self.cache, max(coming))
        with self._slots.rows([live.slot for live in lives]):
            logits = forward.next_logits(last, self.cache)
        rows = self.listed()
        draws = sampler.draw(rows, logits, unread=0 if unread is None else 1)
        return LaunchedStep(rows, [live.version for live in lives], draws)

    def fork(self, forks: Sequence[Fork]) -> Sequence[Fork]:
        """Replace every row by its forks; a row without forks is removed.

        Returns:
            The forks that do not fit.
        """
        fit = forks[: self._max_rows]
        _reorder(self.cache, [index for index, _ in fit], len(self._sequences))
        self._put([sequences for _, sequences in fit])
        return forks[self._max_rows :]

    def join(self, cache: list[Any], forks: Sequence[Fork], count: int) -> Sequence[Fork]:
        """Add the forks of freshly computed rows.

        Args:
            cache: cache of ``count`` rows; if it is empty, no fork can join.
            forks: the forks that are decoded further.
            count: number of rows that were computed.

        Returns:
            The forks that do not fit.
        """
        room = self.room if cache else 0
        if forks[:room]:
            _reorder(cache, [index for index, _ in forks[:room]], count)
            if self.cache:
                for old, new in zip(self.cache, cache, strict=True):
                    old.extend(new)
            else:
                self.cache = cache
            self._sequences += [sequences for _, sequences in forks[:room]]
        return forks[room:]

    def remove(self, ended: Collection[SequenceState]) -> None:
        """Remove sequences from their rows; a row without sequences is removed."""
        rows = [[m for m in sequences if m not in ended] for sequences in self._sequences]
        self.fork([(index, sequences) for index, sequences in enumerate(rows) if sequences])

    def clear(self) -> None:
        """Remove all rows."""
        self._put([])

    def _put(self, sequences: list[list[SequenceState]]) -> None:
        self._sequences = sequences
        if not sequences:
            self.cache = []


def _reorder(cache: Sequence[Any], indices: Sequence[int], count: int) -> None:
    """Select rows of a cache: the new row i is the old row ``indices[i]``."""
    if indices and list(indices) != list(range(count)):
        select_rows(cache, indices)
