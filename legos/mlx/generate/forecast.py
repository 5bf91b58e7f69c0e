"""What an engine will need, from the shapes of a model's arrays, before any is loaded."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import BatchRotatingKVCache, make_prompt_cache

from legos.mlx.generate.batch_cache import is_plain, parts
from legos.mlx.generate.sampling.draw import Recipe, distributions, draw, namespace
from legos.mlx.model.machine import NEGLIGIBLE, cache_sizes, num_bytes
from legos.mlx.model.trace import of_tree, peak_of
from legos.records.limits import EngineLimits

__all__ = ["EngineForecast"]

PROMPT = 512  # tokens of each prompt of a prefill, and of the rows that grow
SHORT = 8  # the same where layers have states: their graph may grow with the tokens of a row
MOST_TOKENS = 4096  # of a prefill; more make it no faster
PREFILL_SHARE = 1 / 8  # of the memory that the weights leave
ROWS = 16  # rows that grow; their number changes the factor little


class EngineForecast:
    """Bytes that an engine needs next to the weights: its caches, and what it computes."""

    def __init__(self, tree: nn.Module, limits: EngineLimits) -> None:
        """Take a tree, with LoRA or without, whose arrays may be lazy; nothing is evaluated."""
        self._tree: Any = tree
        self._limits = limits
        self.traced_bytes = cache(self._traced_bytes)

    def peak_bytes(self, free: int) -> int:
        """Peak bytes of an engine whose caches are full.

        Args:
            free: usable bytes that the weights leave.
        """
        cache_bytes, prefix_bytes = cache_sizes(self._limits, free)
        prefill = self._prefill_bytes(self.prefill_tokens(free))
        decoding = int(cache_bytes * self._decode_factor)
        copied = min(prefix_bytes, self._row_bytes)  # to the full prefix cache, which then evicts
        return prefix_bytes + copied + max(cache_bytes + prefill, decoding)

    def prefill_tokens(self, free: int) -> int:
        """Maximum prompt tokens of a forward pass while no row is decoded.

        Where the limits leave it open, it is 4096, halved until the pass takes at most an eighth of
        the free memory, but at least the tokens of a pass while rows are decoded. It is these where
        the memory of a pass cannot be planned.

        Args:
            free: usable bytes that the weights leave.
        """
        least, tokens = self._limits.chunk_tokens, self._limits.prefill_tokens
        if tokens is not None:
            return tokens
        if num_bytes(self._tree.parameters()) < NEGLIGIBLE * free:
            return max(MOST_TOKENS, least)
        tokens = MOST_TOKENS
        with suppress(NotImplementedError):
            while tokens > least and self._prefill_bytes(tokens) > PREFILL_SHARE * free:
                tokens //= 2
            return max(tokens, least)
        return least

    def _prefill_bytes(self, tokens: int) -> int:
        """Bytes at the peak of a prefill, without the keys and values it makes."""
        traced = min(tokens, PROMPT)  # the rest grows in proportion
        return self.traced_bytes(traced) * tokens // traced

    def _traced_bytes(self, num_tokens: int) -> int:
        """The same for one prompt, or for short ones where layers have states."""
        caches = self._batch_cache(1)
        plain = _of_tokens(caches) == list(parts(caches))
        length = num_tokens if plain else min(num_tokens, SHORT)
        tokens = mx.zeros((num_tokens // length, length), mx.int32)
        made = 0

        def prefill(*_: Any) -> list[mx.array]:
            nonlocal made
            arrays = [array for part in self._computed(tokens) for array in _arrays(part)]
            made = sum(array.nbytes for array in arrays)
            return arrays

        return of_tree(peak_of, self._tree, prefill) - made

    @cached_property
    def _parts(self) -> list[Any]:
        """The caches of keys and values, with lazy arrays of one row."""
        return self._computed(mx.zeros((1, 1), mx.int32))

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of the keys and values of a row of 512 tokens."""
        arrays = [array for part in self._parts for array in _arrays(part)]
        return sum(PROMPT * array.nbytes // array.shape[2] for array in arrays)

    def _computed(self, tokens: mx.array) -> list[Any]:
        """The caches of keys and values after lazy rows of tokens."""
        cache = self._batch_cache(len(tokens))
        self._tree(tokens, cache=cache)
        return _of_tokens(cache)

    def _batch_cache(self, rows: int) -> list[Any]:
        caches = [make_prompt_cache(self._tree) for _ in range(rows)]
        return PromptProcessingBatch(self._tree, list(range(rows)), caches).prompt_cache

    @cached_property
    def _decode_factor(self) -> float:
        """Bytes at the peak of a decode step before which the cache grows / bytes of the cache.

        Several layers have both the old and the new arrays at the same time.
        """
        before = [
            mx.zeros((ROWS, array.shape[1], PROMPT, array.shape[3]), array.dtype)
            for part in self._parts
            for array in _arrays(part)
        ]
        after = 0

        def step(_: Any, arrays: Sequence[mx.array]) -> list[mx.array]:
            nonlocal after
            cache = self._batch_cache(ROWS)
            found = _of_tokens(cache)
            for part, keys, values in zip(found, arrays[::2], arrays[1::2], strict=True):
                part.keys, part.values = keys, values
                part._idx = part._offset = PROMPT
            logits = self._tree(mx.zeros((ROWS, 1), mx.int32), cache=cache)[:, -1, :]
            drawn = self._drawn(logits.astype(mx.float32))
            grown = [array for part in found for array in _arrays(part)]
            after = sum(array.nbytes for array in grown)
            return [*drawn, *grown]

        return of_tree(peak_of, self._tree, step, *before, released=len(before)) / after

    def _drawn(self, logits: mx.array) -> Sequence[mx.array]:
        """What the device computes of logits [B, V]."""
        rows, num_vocabulary = logits.shape
        if self._limits.decode_ahead != "on" and namespace(num_vocabulary) is np:
            return [logits]
        made = distributions(mx, logits, [Recipe()] * rows)
        return draw(mx, made, which=np.arange(rows), seeds=[0] * rows, positions=[0] * rows)


def _of_tokens(cache: Sequence[Any]) -> list[Any]:
    """The caches that hold keys and values of tokens, all or those of a window."""
    return [part for part in parts(cache) if is_plain(part) or type(part) is BatchRotatingKVCache]


def _arrays(part: Any) -> tuple[mx.array, mx.array]:
    return part.keys, part.values
