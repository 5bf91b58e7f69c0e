"""Minimal loops of mlx-lm and MLX, with which the bench compares an engine and a trainer.

Generation is mlx-lm's ``BatchGenerator``. An optimiser step pads its rows, differentiates
automatically and applies AdamW, as trainers do that pad their rows.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator

from legos.mlx.model.forward import CausalModel
from legos.records.batch import pad_rows

Row = tuple[int, ...]
Split = tuple[Row, int]
"""Token ids, and how many of them are the prompt."""


def bare_generation(
    model: nn.Module, prompts: Sequence[Row], *, max_tokens: int, rows: int
) -> float:
    """Measure the seconds in which a ``BatchGenerator`` samples one completion of every prompt.

    Args:
        model: the module tree with LoRA.
        prompts: token ids of each prompt; equal prompts are computed again.
        max_tokens: number of tokens of each completion.
        rows: number of rows that are decoded, and prefilled, at once.
    """
    started = time.perf_counter()
    generator = bare_generator(model, max_tokens=max_tokens, rows=rows)
    generator.insert([list(prompt) for prompt in prompts])
    left = len(prompts)
    while left:
        left -= sum(r.finish_reason is not None for r in generator.next_generated())
    generator.close()
    return time.perf_counter() - started


def bare_generator(model: nn.Module, *, max_tokens: int, rows: int) -> BatchGenerator:
    """A generator that leaves Metal's wired limit as it is; see ``bound_memory``."""
    module = sys.modules[BatchGenerator.__module__]
    vars(module)["maybe_set_recommended_wired_limit"] = lambda: None
    return BatchGenerator(
        model,
        max_tokens=max_tokens,
        sampler=mx.random.categorical,
        completion_batch_size=rows,
        prefill_batch_size=rows,
        stream=mx.default_stream(mx.default_device()),
    )


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
        _, gradients = _summed(step(*block) for block in inputs)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimiser.update(model, gradients)
        mx.eval(model.trainable_parameters(), optimiser.state)

    return update


def _summed(parts: Iterable[Any]) -> Any:
    """The sum of arrays or trees of arrays; each part is evaluated before the next one is made."""
    total: Any = None
    for part in parts:
        total = part if total is None else tree_map(mx.add, total, part)
        mx.eval(total)
    return total


def _inputs(block: Sequence[Split], pad_to: int) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Token ids [R, T], and the row, column and target id of every completion token."""
    input_ids = mx.array(pad_rows([tokens[:-1] for tokens, _ in block], width=pad_to))
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
