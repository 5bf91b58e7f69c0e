"""Prefill: next-token logits of distinct prompts, with or without a key-value cache."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from legos.mlx.generate.batch_cache import BatchCache
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.prefix_kv import PrefixKV
from legos.records.batch import pad_rows

Row = tuple[int, ...]
MIN_CHUNK = 2  # mlx-lm's sliding windows refuse padding in a chunk of one token


def last_logits(
    forward: CausalModel, rows: Sequence[Row], cache: list[PrefixKV] | None = None
) -> mx.array:
    """[B, V] next-token logits of B rows, which continue a prefix or nothing."""
    last = mx.array([len(row) - 1 for row in rows])
    return forward.logits_at(mx.array(pad_rows(rows)), mx.arange(len(rows)), last, cache)


class Prefill:
    """Fills slots of a cache with one block of rows, one chunk at a time.

    The chunks contain whole rows where the model is split into trunk and head and all of its layers
    are slots. Otherwise one more pass computes the last token of each row: without a head, logits
    would be computed at all positions, and a sliding window keeps whole chunks until a token comes.

    Attributes:
        num_tokens: number of tokens to compute in all, without padding.
        block: the block's part of the cache; complete after ``logits`` is called.
    """

    def __init__(
        self,
        forward: CausalModel,
        rows: Sequence[Row],
        known: Sequence[tuple[list[Any], int]],
        *,
        cache: BatchCache,
        step: int,
        coming: int = 0,
        shared: bool = False,
    ) -> None:
        """Prepare a block.

        Args:
            forward: the model.
            rows: token ids of each row.
            known: for each row, the cache of a prefix and its number of tokens (fewer than the row
                has); an empty cache and 0 where no prefix is cached.
            cache: gives the rows slots until they join it.
            step: rows are processed in chunks of a multiple of this many tokens.
            coming: the most tokens that a row may get after its own.
            shared: whether the rows become prefixes (``BatchCache.begin``).
        """
        self._forward = forward
        self._step = step
        self._cache = cache
        caches, longest = [found for found, _ in known], max(map(len, rows))
        self.block = cache.begin(caches, longest, coming=coming, shared=shared)
        self._whole = self.block.in_slots and forward.trunk is not forward.model
        apart = 0 if self._whole else 1  # last tokens of each row, which are computed by themselves
        self._starts = [done for _, done in known]
        self._ends = [len(row) - apart for row in rows]
        rest = [
            row[done:end] for row, done, end in zip(rows, self._starts, self._ends, strict=True)
        ]
        self._lengths = [len(row) for row in rest]
        self.num_tokens = sum(self._lengths) + apart * len(rows)
        self._last = mx.array([row[-1] for row in rows])
        self._hidden: list[mx.array] = []  # [N, H] hidden states of last tokens, chunk by chunk
        self._ended: list[int] = []  # the rows of these
        self._position = 0
        self._longest = max(self._lengths)
        self._padded = self._longest > min(self._lengths)
        if self._padded:
            self._longest = max(self._longest, MIN_CHUNK)
            padding = [self._longest - length for length in self._lengths]
            for layer in self.block.layers:
                layer.prepare(lengths=self._lengths, right_padding=padding)
        self._inputs = mx.array(pad_rows(rest, width=self._longest)) if self._longest else None

    def advance(self, max_tokens: int) -> bool:
        """Compute one chunk of about ``max_tokens`` padded tokens; True after the last chunk."""
        if self._inputs is not None and self._position < self._longest:
            width = max_tokens // self._inputs.shape[0] // self._step * self._step
            width = max(width, self._step)
            if self._longest - self._position - width < MIN_CHUNK:
                width = self._longest - self._position
            self._compute(self._inputs[:, self._position : self._position + width])
            if self._position >= self._longest and self._padded:
                for layer in self.block.layers:
                    layer.finalize()
            mx.eval([layer.state for layer in self.block.layers], self._hidden)
        return self._position >= self._longest

    def logits(self) -> mx.array:
        """[B, V] next-token logits."""
        if self._whole:
            hidden = mx.concatenate(self._hidden)[mx.array(np.argsort(self._ended))]
            return self._forward.head(hidden).astype(mx.float32)
        ends = [end + 1 for end in self._ends]
        self._cache.prefill(self.block, self._ends, 1, ends)
        return self._forward.next_logits(self._last, self.block.layers)

    def _compute(self, chunk: mx.array) -> None:
        """Add a chunk to the cache, and keep the hidden states of last tokens in it."""
        begin, width = self._position, chunk.shape[1]
        self._position += width
        starts = [min(n + begin, end) for n, end in zip(self._starts, self._ends, strict=True)]
        ends = [min(start + width, end) for start, end in zip(starts, self._ends, strict=True)]
        self._cache.prefill(self.block, starts, width, ends)
        hidden = self._forward.trunk(chunk, cache=self.block.layers)
        last = [length - 1 - begin for length in self._lengths]
        ended = [row for row, column in enumerate(last) if 0 <= column < width]
        if self._whole and ended:
            columns = [last[row] for row in ended]
            self._hidden.append(hidden[mx.array(ended), mx.array(columns)])
            self._ended += ended
