"""Prefill: from distinct prompts to the logits of their last token, with or without a cache."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from legos.mlx.model.forward import CausalModel

__all__ = ["Prefill", "last_logits", "pad_rows"]

Row = tuple[int, ...]


def last_logits(forward: CausalModel, rows: Sequence[Row]) -> mx.array:
    """[B, V] float32 logits of the next token of B rows; no cache is made."""
    input_ids, last = pad_rows(rows)
    return forward.logits_at(input_ids, mx.arange(len(rows)), last)


class Prefill:
    """One block of rows on its way into a batch cache, a chunk at a time.

    Attributes:
        num_tokens: tokens that are computed in all, padding left out.
        cache: one batch cache per layer; whole once ``logits`` was asked for.
    """

    def __init__(
        self,
        forward: CausalModel,
        rows: Sequence[Row],
        known: Sequence[tuple[list[Any], int]],
        *,
        step: int,
    ) -> None:
        """Prepare a block.

        Args:
            forward: the model.
            rows: token ids of each row.
            known: per row the cache of its beginning and how many tokens are in it (less than the
                row has); an empty cache and 0 where nothing is known.
            step: rows are processed in pieces of a multiple of so many tokens.
        """
        self._forward = forward
        self._step = step
        self._last = mx.array([row[-1] for row in rows])
        rest = [row[done:-1] for row, (_, done) in zip(rows, known, strict=True)]
        lengths = [len(row) for row in rest]
        self.num_tokens = sum(lengths) + len(rows)
        caches = [cache or make_prompt_cache(forward.model) for cache, _ in known]
        self.cache: list[Any] = PromptProcessingBatch(
            forward.model, list(range(len(rows))), caches
        ).prompt_cache
        self._position = 0
        self._longest = max(lengths)
        self._padded = self._longest > min(lengths)
        self._inputs = mx.array(_padded(rest)) if self._longest else None
        if self._padded:
            padding = [self._longest - length for length in lengths]
            for layer in self.cache:
                layer.prepare(lengths=lengths, right_padding=padding)

    def advance(self, max_tokens: int) -> bool:
        """Compute at most so many padded tokens more; True once only the last of each is left."""
        if self._inputs is not None and self._position < self._longest:
            width = max_tokens // self._inputs.shape[0] // self._step * self._step
            width = max(width, self._step)
            chunk = self._inputs[:, self._position : self._position + width]
            self._forward.model(chunk, cache=self.cache)
            self._position += width
            if self._position >= self._longest and self._padded:
                for layer in self.cache:
                    layer.finalize()
            mx.eval([layer.state for layer in self.cache])
        return self._position >= self._longest

    def logits(self) -> mx.array:
        """[B, V] float32 logits of the next token, the last of each row going into the cache."""
        return self._forward.next_logits(self._last, self.cache)


def pad_rows(rows: Sequence[Row]) -> tuple[mx.array, mx.array]:
    """[R, T] right-padded token ids, and [R] the place of each row's last token."""
    lengths = np.array([len(row) for row in rows], np.int32)
    return mx.array(_padded(rows)), mx.array(lengths - 1)


def _padded(rows: Sequence[Row]) -> np.ndarray:
    """[R, T] right-padded with 0."""
    padded = np.zeros((len(rows), max(len(row) for row in rows)), np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
