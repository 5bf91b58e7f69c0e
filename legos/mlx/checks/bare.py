"""Bare loops: the same work with nothing around it, the limit that benches measure against.

``bare_generation`` drives mlx-lm's BatchGenerator directly; ``bare_training`` is one forward,
backward and AdamW update of the same LoRA model on the same rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator

from legos.mlx.generate.prefill import pad_rows, row_blocks

__all__ = ["bare_generation", "bare_shared_generation", "make_bare_training"]

Row = tuple[int, ...]


def bare_generation(
    model: nn.Module, prompts: Sequence[Row], *, max_tokens: int, rows: int
) -> float:
    """Seconds in which a bare BatchGenerator samples a completion of every prompt.

    Args:
        model: the module tree, LoRA in it.
        prompts: token ids; every one is computed, equal ones again.
        max_tokens: tokens of each completion.
        rows: decoded at once, and prefilled at once.
    """
    started = time.perf_counter()
    generator = _generator(model, max_tokens=max_tokens, rows=rows)
    generator.insert([list(prompt) for prompt in prompts])
    left = len(prompts)
    while left:
        left -= sum(r.finish_reason is not None for r in generator.next_generated())
    generator.close()
    return time.perf_counter() - started


def bare_shared_generation(model: nn.Module, counts: Mapping[Row, int], *, rows: int) -> float:
    """Seconds in which a bare loop samples one token ``count`` times for each distinct prompt.

    The given sharing: a distinct prompt goes through a BatchGenerator once, and its tokens are
    drawn from the log-probabilities that come back, with the log-probability of each.
    """
    started = time.perf_counter()
    generator = _generator(model, max_tokens=1, rows=rows)
    prompts = list(counts)
    numbers = dict(zip(generator.insert([list(p) for p in prompts]), prompts, strict=True))
    while numbers:
        for response in generator.next_generated():
            count = counts[numbers.pop(response.uid)]
            tokens = mx.random.categorical(response.logprobs, num_samples=count)
            _ = tokens.tolist(), response.logprobs[tokens].tolist()
    generator.close()
    return time.perf_counter() - started


def make_bare_training(
    model: nn.Module, rows: Sequence[Row], learning_rate: float, max_tokens: int
) -> Callable[[], float]:
    """A function that does one update on rows, every one computed, and returns its seconds.

    The loss is the mean log-probability of each row's last place with a fixed advantage: the
    forward and backward pass that any policy loss needs, in passes of at most ``max_tokens`` padded
    tokens, and an AdamW update.
    """
    optimiser = optim.AdamW(learning_rate=learning_rate)
    blocks = [pad_rows(block) for block in row_blocks(rows, max_tokens)]

    def loss(input_ids: mx.array, last: mx.array) -> mx.array:
        places = mx.arange(len(last))
        logits = model(input_ids)[places, last]
        logprobs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
        return -mx.sum(logprobs[places, input_ids[places, last]]) / len(rows)

    step = nn.value_and_grad(model, loss)

    def update() -> float:
        started = time.perf_counter()
        gradients = None
        for block in blocks:
            _, grads = step(*block)
            gradients = grads if gradients is None else tree_map(mx.add, gradients, grads)
            mx.eval(gradients)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimiser.update(model, gradients)
        mx.eval(model.trainable_parameters(), optimiser.state)
        return time.perf_counter() - started

    return update


def _generator(model: nn.Module, *, max_tokens: int, rows: int) -> BatchGenerator:
    return BatchGenerator(
        model,
        max_tokens=max_tokens,
        sampler=mx.random.categorical,
        completion_batch_size=rows,
        prefill_batch_size=rows,
        stream=mx.default_stream(mx.default_device()),
    )
