"""Checks on a few tokens that the engine computes what one whole forward pass computes.

Rows of unlike lengths are prefilled in chunks, continue each other's cached prefixes, are decoded,
forked and joined, as the engine does it, some with an adapter and some without. Each of their
distributions must equal that of the row alone, without a cache, in float32. This computes about 250
tokens; 2,500 for a model whose layers keep a state, because their chunks are long.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import can_trim_prompt_cache
from numpy.typing import NDArray

from legos.errors import AdapterError, ModelError
from legos.mlx.generate.batch_cache import BatchCache, BlockCache
from legos.mlx.generate.multi_lora.slots import NO_ADAPTER, AdapterSlots
from legos.mlx.generate.prefill import Prefill, last_logits
from legos.mlx.generate.prefix_cache import copied, trimmed
from legos.mlx.generate.shared_prefix import computed_prefix, continued
from legos.mlx.model.cache_parts import extract_rows
from legos.mlx.model.faults import raise_fault
from legos.mlx.model.float32 import LARGEST_GAP, in_float32
from legos.mlx.model.forward import WAY_OUT, CausalModel, architecture
from legos.mlx.model.lora import LINEAR, pair_shapes
from legos.weights.adapter import Adapter, LoraShape

CHUNK = 5  # tokens of a chunk, where the architecture allows any number
Tokens = tuple[int, ...]
Row = tuple[Tokens, int]
"""Token ids so far, and the row's slot."""
Known = tuple[list[Any], int]
"""The cache of a prefix, and its number of tokens."""


class _GapError(Exception):
    """A distribution that differs from that of the row alone; its text says by how much."""


def check_serving(forward: CausalModel, slots: AdapterSlots, *, step: int) -> bool:
    """Run the check; call it on the thread that owns the module tree.

    Args:
        forward: the model.
        slots: its adapters; none is loaded afterwards.
        step: prompts are processed in chunks of a multiple of this many tokens.

    Returns:
        Whether rows, scored or decoded, may continue a prefix that is in memory once.

    Raises:
        ModelError: the engine cannot serve the model with adapters.
    """
    try:
        with in_float32(forward.model):
            slot = slots.load(_adapter(forward.model))
            try:
                _check(forward, slots, step, (slot, NO_ADAPTER))
                for name in slots.uncalled:
                    raise AdapterError(
                        f"{name} is computed without a call of its module, so LoRA on it has no "
                        "effect"
                    )
                return _shares(forward, slots, slot)
            finally:
                slots.free(slot)
    except Exception as error:  # of mlx-lm's code for this architecture, whatever it is
        raise_fault(error)
        reason, _, _ = f"{error}".partition("\n")
        if not isinstance(error, _GapError | AdapterError):
            reason = f"{type(error).__name__}: {reason}"
        raise ModelError(
            f"{architecture(forward.model)} cannot be served: {reason}; {WAY_OUT}"
        ) from error


def _check(forward: CausalModel, slots: AdapterSlots, step: int, used: tuple[int, int]) -> None:
    """Raise ``_GapError`` where the engine's way to compute a row changes its distribution."""
    chunk = max(step, CHUNK)
    long: Tokens = tuple(1 + (n * n) % 5 for n in range(chunk + 7))
    short: Tokens = (2, 1)
    first: list[Row] = [(long, used[0]), (short, used[1])]
    alone: dict[Row, NDArray[np.float32]] = {}  # each row is computed once

    def check(rows: Sequence[Row], logits: mx.array, done: str) -> None:
        """Compare a batch's next-token distributions with those of its rows alone."""
        for row, found in zip(rows, _logprobs(logits), strict=True):
            if row not in alone:
                tokens, slot = row
                with slots.rows([slot]):
                    last = mx.array([len(tokens) - 1])
                    whole = forward.logits_at(mx.array([tokens]), mx.array([0]), last)
                    alone[row] = _logprobs(whole)[0]
            nats = float(np.abs(found - alone[row]).max())
            share = nats / float(alone[row].std())
            if not share <= LARGEST_GAP:
                raise _GapError(
                    f"{done} get other log-probabilities than each alone without a cache, by up to "
                    f"{nats:.2g} nats ({share:.2g} of their deviation)"
                )

    cache = BatchCache(forward.model)

    def prefilled(rows: Sequence[Row], known: Sequence[Known], done: str) -> BlockCache:
        """The cache of a block, after a check of its rows' next-token distributions."""
        tokens = [tokens for tokens, _ in rows]
        prefill = Prefill(forward, tokens, known, cache=cache, step=step)
        with slots.rows([slot for _, slot in rows]):
            while not prefill.advance(chunk * len(rows)):
                pass
            check(rows, prefill.logits(), done)
        return prefill.block

    cache.join(prefilled(first[:1], [([], 0)], "rows in chunks"), [])
    block = prefilled(first, [([], 0), ([], 0)], "in a batch, rows of unlike lengths")
    (stored,) = extract_rows(block.layers, [0])
    cache.join(block, [0, 1])
    rows: list[Row] = [(short, used[1]), ((*long, 3, 4), used[0])]
    known: list[Known] = [([], 0), (copied(stored), len(long))]
    if can_trim_prompt_cache(stored):
        half = len(long) // 2
        rows.insert(0, ((*long[:half], 5, 1, 2), used[0]))
        known.insert(0, (trimmed(stored, len(long) - half), half))
    again = prefilled(rows, known, "rows that continue a cached prefix")
    slots_taken = cache.join(again, [1, 0, 0])
    decoded = dict(zip([0, 1, *slots_taken], [*first, rows[1], rows[0], rows[0]], strict=True))
    for token in (3, 4):
        rows = [decoded[slot] for slot in cache.settle()]
        rows = [((*tokens, token + n % 2), slot) for n, (tokens, slot) in enumerate(rows)]
        decoded = dict(enumerate(rows))
        cache.decode()
        with slots.rows([slot for _, slot in rows]):
            last = mx.array([tokens[-1] for tokens, _ in rows])
            logits = forward.next_logits(last, cache.layers)
        check(rows, logits, "rows that were forked and joined")


def _shares(forward: CausalModel, slots: AdapterSlots, slot: int) -> bool:
    """Whether rows that continue prefixes have their distributions, decoded or not."""

    def differ(logits: mx.array, rows: Sequence[Tokens]) -> bool:
        found, wanted = _logprobs(logits), _logprobs(last_logits(forward, rows))
        return not np.abs(found - wanted).max() <= LARGEST_GAP * wanted.std()

    cache = BatchCache(forward.model)
    rows: list[Tokens] = [(5, 1), (1, 2, 5, 3, 1, 4), (2, 4, 1)]
    try:
        with slots.rows([slot]):
            for own, forks in ((rows[:1], [0]), (rows[1:], [0, 1, 0])):
                shared = len(own) > 1
                prefill = Prefill(
                    forward, own, [([], 0)] * len(own), cache=cache, step=1, shared=shared
                )
                while not prefill.advance(CHUNK * len(own)):
                    pass
                prefill.logits()
                cache.join(prefill.block, forks)
            rows.append(rows[1])
            for token in (2, 3):
                rows = [(*row, token + n % 3) for n, row in enumerate(rows)]
                cache.decode()
                last = mx.array([row[-1] for row in rows])
                if differ(forward.next_logits(last, cache.layers), rows):
                    return False
            prefix, rests = (1, 2, 5), [(3,), (1, 4)]
            joined = continued([computed_prefix(forward, prefix)], [0, 0], len(prefix))
            if differ(last_logits(forward, rests, joined), [prefix + rest for rest in rests]):
                return False
    except Exception as error:  # of mlx-lm's code for this architecture; rows hold copies
        raise_fault(error)
        return False
    return True


def _logprobs(logits: mx.array) -> NDArray[np.float32]:
    logits = logits.astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def _adapter(model: nn.Module) -> Adapter:
    """An adapter of rank 1 on the modules that training adapts, without the output head."""
    layers: Any = model.layers
    trained = {id(m) for layer in layers for _, m in layer.named_modules() if isinstance(m, LINEAR)}
    arrays: dict[str, mx.array] = {}
    for name, module in model.named_modules():
        if id(module) in trained:
            trained.remove(id(module))
            for part, shape in zip(("lora_a", "lora_b"), pair_shapes(module, 1), strict=True):
                size = int(np.prod(shape))
                values = np.cos(np.arange(size, dtype=np.float32)) / (0.3 * max(shape) ** 0.5)
                arrays[f"{name}.{part}"] = mx.array(values.reshape(shape))
    if not arrays:
        raise AdapterError("its layers have no linear modules")
    shape = LoraShape(rank=1, scale=0.3, num_layers=len(layers), modules=("check",))
    return Adapter(name="check", version=0, shape=shape, arrays=arrays)
