"""Prefill: from distinct prompts to the logits of their last token, with or without a cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from legos.mlx.forward import CausalModel

__all__ = ["Prefilled", "pad_rows", "prefill", "row_blocks"]

Row = tuple[int, ...]
CHUNK = 512  # prompt tokens of one row per forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """Rows that went through the model together."""

    rows: list[Row]
    logits: mx.array  # [B, V] float32, of the next token
    cache: list[Any]  # one batch cache per layer, or empty where no row goes on


def prefill(
    forward: CausalModel, final: Sequence[Row], longer: Sequence[Row], *, max_tokens: int
) -> Iterator[Prefilled]:
    """Run distinct rows through the model.

    Args:
        forward: the model.
        final: rows of which only the next token is wanted; no cache is made for them.
        longer: rows that will be decoded further.
        max_tokens: padded tokens of one forward pass.
    """
    for block in row_blocks(final, max_tokens):
        input_ids, last = pad_rows(block)
        logits = forward.logits_at(input_ids, mx.arange(len(block)), last)
        yield Prefilled(rows=block, logits=logits, cache=[])
    for block in row_blocks(longer, max_tokens):
        batch = PromptProcessingBatch(
            forward.model,
            list(range(len(block))),
            [make_prompt_cache(forward.model) for _ in block],
            prefill_step_size=CHUNK,
        )
        if len(block[-1]) > 1:
            batch.prompt([list(row[:-1]) for row in block])
        tokens = mx.array([row[-1] for row in block])
        logits = forward.next_logits(tokens, batch.prompt_cache)
        yield Prefilled(rows=block, logits=logits, cache=batch.prompt_cache)


def row_blocks(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Rows sorted by length, in blocks of at most ``max_tokens`` padded tokens or one row."""
    block: list[Row] = []
    for row in sorted(rows, key=len):
        if block and (len(block) + 1) * len(row) > max_tokens:
            yield block
            block = []
        block.append(row)
    if block:
        yield block


def pad_rows(rows: Sequence[Row]) -> tuple[mx.array, mx.array]:
    """[R, T] right-padded token ids, and [R] the place of each row's last token."""
    lengths = np.array([len(row) for row in rows], np.int32)
    padded = np.zeros((len(rows), int(lengths.max())), np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return mx.array(padded), mx.array(lengths - 1)
