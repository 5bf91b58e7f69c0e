"""What a loaded model's caches can do, found out by running a few tokens through it once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache
from numpy.typing import NDArray

from legos.errors import ModelError

__all__ = ["Capabilities", "probe"]

PROBE = (
    (1, 2, 1, 1, 2, 2, 1, 2, 1),
    (2, 1),
)  # rows of unlike length, so that one of them is padded
# mlx-lm's ``ssm_attn`` takes the state of a row that goes on beyond a piece from the wrong place
# where the piece is no multiple of its own step (seen in 0.32.2, falcon_h1).
STATE_STEP = 256
WAY_OUT = "take a model of another architecture, such as llama, qwen3 or gemma3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model that can be served in batches needs and allows."""

    architecture: str
    caches: tuple[str, ...]  # classes of the layers' caches, sorted
    bytes_per_token: int  # of one row, in the layers that keep every token
    bytes_per_row: int  # of one row of any length: its states, and its windows when they are full
    block_tokens: int  # the layers that keep every token allocate this many at once
    prompt_step: int  # a prompt may be processed in pieces of a multiple of this many tokens

    def cache_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Device memory of a batch's cache, at most.

        Args:
            num_rows: rows of the batch.
            num_tokens: tokens of its longest row, as every row has room for as many.
        """
        blocks = -(-num_tokens // self.block_tokens)
        return num_rows * (self.bytes_per_row + blocks * self.block_tokens * self.bytes_per_token)


def probe(model: nn.Module) -> Capabilities:
    """Find out what a tree can do; for the thread that owns it.

    Raises:
        ModelError: the engine cannot serve it: a cache of its layers cannot be batched, or rows of
            unlike length compute in a batch what they do not compute alone.
    """
    name = str(getattr(model, "model_type", type(model).__module__.rpartition(".")[2]))
    caches: list[Any] = make_prompt_cache(model)
    leaves = list(_leaves(caches))
    for leaf in leaves:
        if not hasattr(leaf, "merge"):
            raise ModelError(
                f"{name} cannot be served: its {type(leaf).__name__} cannot be merged into a "
                f"batch; {WAY_OUT}"
            )
        if not isinstance(leaf, (KVCache, RotatingKVCache, ArraysCache)):
            raise ModelError(
                f"{name} cannot be served: how its {type(leaf).__name__} grows is not known; "
                f"{WAY_OUT}"
            )
    mx.eval(model(mx.array([PROBE[0][:1]]), cache=caches))
    _check_batch(model, name)
    return Capabilities(
        architecture=name,
        caches=tuple(sorted({type(leaf).__name__ for leaf in leaves})),
        bytes_per_token=sum(_token_bytes(leaf) for leaf in leaves if isinstance(leaf, KVCache)),
        bytes_per_row=sum(_row_bytes(leaf) for leaf in leaves),
        block_tokens=KVCache.step,
        prompt_step=STATE_STEP if any(isinstance(leaf, ArraysCache) for leaf in leaves) else 1,
    )


def _leaves(caches: Sequence[Any]) -> Iterator[Any]:
    for one in caches:
        if isinstance(one, CacheList):
            yield from _leaves(one.caches)
        else:
            yield one


def _token_bytes(cache: Any) -> int:
    """Of one token in a key-value cache, whose third axis is tokens."""
    return sum(array.nbytes // array.shape[2] for array in (cache.keys, cache.values))


def _row_bytes(cache: Any) -> int:
    """Of one row in a cache that does not grow, or not for ever."""
    if isinstance(cache, RotatingKVCache):
        return _token_bytes(cache) * cache.max_size
    return cache.nbytes if isinstance(cache, ArraysCache) else 0


def _check_batch(model: nn.Module, name: str) -> None:
    """Compare a small batch of unlike rows with the same rows alone.

    The bound is far above the rounding of the model's type and below what padding does to a row.
    """
    together, kind = _last_logprobs(model, PROBE)
    alone = np.concatenate([_last_logprobs(model, [row])[0] for row in PROBE])
    gaps = np.abs(together - alone).mean(axis=-1) / alone.std(axis=-1)
    if not gaps.max() < (1e-3 if kind == mx.float32 else 0.1):
        raise ModelError(
            f"{name} cannot be served: in a batch, rows of unlike length compute other "
            f"log-probabilities than alone (apart by {gaps.max():.2g} of their deviation), because "
            f"its layers do not leave out padding; {WAY_OUT}"
        )


def _last_logprobs(
    model: Any, rows: Sequence[tuple[int, ...]]
) -> tuple[NDArray[np.float32], mx.Dtype]:
    """[B, V] after the last token of each row, computed as the engine does; the model's type."""
    batch = PromptProcessingBatch(
        model, list(range(len(rows))), [make_prompt_cache(model) for _ in rows]
    )
    batch.prompt([list(row[:-1]) for row in rows])
    last = mx.array([[row[-1]] for row in rows])
    logits = model(last, cache=batch.prompt_cache)[:, -1]
    return np.array(nn.log_softmax(logits.astype(mx.float32), axis=-1)), logits.dtype
