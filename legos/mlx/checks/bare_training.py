"""Bare training of completions: padded rows, automatic gradients, AdamW, and nothing around them.

The limit that the train bench measures against, and the padded trainers that it is compared with.
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
    """A function that does one update on blocks of rows, each block padded to its longest row.

    The loss is the mean log-probability of the completion's tokens.

    Args:
        model: the module tree, LoRA in it.
        blocks: rows that go through the model together.
        pad_to: shortest padded length.
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
    """The sum of arrays, or of trees of them, each part evaluated before the next one is made."""
    total: Any = None
    for part in parts:
        total = part if total is None else tree_map(mx.add, total, part)
        mx.eval(total)
    return total


def _inputs(block: Sequence[Split], pad_to: int) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Token ids [R, T], and row, column and target of every completion token."""
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
