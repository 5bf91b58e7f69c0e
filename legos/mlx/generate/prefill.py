"""Prefill: next-token logits of distinct prompts, with or without a key-value cache."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from legos.mlx.generate.batch_cache import GROWTH, set_growth
from legos.mlx.model.forward import CausalModel
from legos.records.batch import pad_rows as padded

__all__ = ["Prefill", "last_logits", "pad_rows"]

Row = tuple[int, ...]
MIN_CHUNK = 2  # mlx-lm's sliding windows refuse padding in a chunk of one token


def last_logits(forward: CausalModel, rows: Sequence[Row]) -> mx.array:
    """[B, V] float32 next-token logits of B rows, without a cache."""
    input_ids, last = pad_rows(rows)
    return forward.logits_at(input_ids, mx.arange(len(rows)), last)


class Prefill:
    """Fills a batch cache with one block of rows, one chunk at a time.

    Attributes:
        num_tokens: number of tokens to compute in all, without padding.
        cache: one batch cache per layer; complete after ``logits`` is called.
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
            known: for each row, the cache of a prefix and its number of tokens (fewer than the row
                has); an empty cache and 0 where no prefix is cached.
            step: rows are processed in chunks of a multiple of this many tokens.
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
        set_growth(self.cache, GROWTH)
        self._position = 0
        self._padded = max(lengths) > min(lengths)
        self._longest = max(max(lengths), MIN_CHUNK) if self._padded else max(lengths)
        self._inputs = mx.array(padded(rest, width=self._longest)) if self._longest else None
        if self._padded:
            padding = [self._longest - length for length in lengths]
            for layer in self.cache:
                layer.prepare(lengths=lengths, right_padding=padding)

    def advance(self, max_tokens: int) -> bool:
        """Compute one chunk of about ``max_tokens`` padded tokens; True after the last chunk."""
        if self._inputs is not None and self._position < self._longest:
            width = max_tokens // self._inputs.shape[0] // self._step * self._step
            width = max(width, self._step)
            if self._longest - self._position - width < MIN_CHUNK:
                width = self._longest - self._position
            chunk = self._inputs[:, self._position : self._position + width]
            self._forward.model(chunk, cache=self.cache)
            self._position += width
            if self._position >= self._longest and self._padded:
                for layer in self.cache:
                    layer.finalize()
            mx.eval([layer.state for layer in self.cache])
        return self._position >= self._longest

    def logits(self) -> mx.array:
        """[B, V] float32 next-token logits; adds the last token of each row to the cache."""
        return self._forward.next_logits(self._last, self.cache)


def pad_rows(rows: Sequence[Row]) -> tuple[mx.array, mx.array]:
    """[R, T] right-padded token ids, and [R] column of each row's last token."""
    lengths = np.array([len(row) for row in rows], np.int32)
    return mx.array(padded(rows)), mx.array(lengths - 1)
