"""Baseline training for benches: padded rows, automatic differentiation and AdamW only.

The train bench uses it as a speed limit, and as a model of trainers that pad their rows.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map

from legos.mlx.generate.prefill import pad_rows
from legos.mlx.model.forward import CausalModel

__all__ = ["Split", "make_bare_update", "summed"]

Split = tuple[tuple[int, ...], int]
"""Token ids, and how many of them are the prompt."""


def make_bare_update(
    model: nn.Module, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
) -> Callable[[], None]:
    """Make a function that does one update on blocks of rows, padded to the longest in each block.

    The loss is the negative mean log-probability of the completion tokens.

    Args:
        model: the module tree with LoRA.
        blocks: rows that are computed together.
        pad_to: minimum padded length, tokens.
    """
    forward = CausalModel(model)
    optimiser = optim.AdamW(learning_rate=1e-6)
    total = sum(len(tokens) - prompt for block in blocks for tokens, prompt in block)
    inputs = [_inputs(block, pad_to) for block in blocks]

    def loss(input_ids: mx.array, rows: mx.array, columns: mx.array, targets: mx.array) -> mx.array:
        logits = forward.logits_at(input_ids, rows, columns)
        chosen = mx.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
        return -mx.sum(chosen - mx.logsumexp(logits, axis=1)) / total

    step = nn.value_and_grad(model, loss)

    def update() -> None:
        _, gradients = summed(step(*block) for block in inputs)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimiser.update(model, gradients)
        mx.eval(model.trainable_parameters(), optimiser.state)

    return update


def summed(parts: Iterable[Any]) -> Any:
    """The sum of arrays or trees of arrays; each part is evaluated before the next one is made."""
    total: Any = None
    for part in parts:
        total = part if total is None else tree_map(mx.add, total, part)
        mx.eval(total)
    return total


def _inputs(block: Sequence[Split], pad_to: int) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Token ids [R, T], and the row, column and target id of every completion token."""
    input_ids, _ = pad_rows([tokens[:-1] for tokens, _ in block])
    input_ids = mx.pad(input_ids, [(0, 0), (0, max(0, pad_to - input_ids.shape[1]))])
    places = np.array(
        [
            (row, column - 1, tokens[column])
            for row, (tokens, prompt) in enumerate(block)
            for column in range(prompt, len(tokens))
        ],
        np.int32,
    )
    rows, columns, targets = (mx.array(places[:, axis]) for axis in range(3))
    return input_ids, rows, columns, targets
