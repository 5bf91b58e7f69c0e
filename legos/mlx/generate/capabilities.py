"""What the caches of a loaded model support, found by running a few tokens through it once."""

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
)  # rows of different lengths, so that one of them is padded
# Where a row is longer than one chunk and the chunk is not a multiple of the step of mlx-lm's
# ``ssm_attn``, ``ssm_attn`` keeps the state of a wrong position (seen in 0.32.2, falcon_h1).
STATE_STEP = 256
WAY_OUT = "take a model of another architecture, such as llama, qwen3 or gemma3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Cache sizes and chunk size of a model that can be served in batches."""

    architecture: str
    caches: tuple[str, ...]  # class names of the layers' caches, sorted
    bytes_per_token: int  # bytes per token and row, in the layers that keep every token
    bytes_per_row: int  # bytes per row of any length: its states, and its full sliding windows
    block_tokens: int  # tokens that a layer which keeps every token allocates at once
    prompt_step: int  # a prompt is processed in chunks of a multiple of this many tokens

    def cache_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Upper bound of the device memory of a batch's cache, in bytes.

        Args:
            num_rows: number of rows in the batch.
            num_tokens: tokens of its longest row; every row is allocated at this length.
        """
        blocks = -(-num_tokens // self.block_tokens)
        return num_rows * (self.bytes_per_row + blocks * self.block_tokens * self.bytes_per_token)


def probe(model: nn.Module) -> Capabilities:
    """Find the capabilities of a model; call it on the thread that owns the module tree.

    Raises:
        ModelError: the engine cannot serve the model: the cache of a layer cannot be batched, or
            rows of different lengths give other results in a batch than alone.
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
    """Bytes of one token in a key-value cache, whose third axis is tokens."""
    return sum(array.nbytes // array.shape[2] for array in (cache.keys, cache.values))


def _row_bytes(cache: Any) -> int:
    """Bytes of one row in a cache of constant or bounded size; 0 for a growing one."""
    if isinstance(cache, RotatingKVCache):
        return _token_bytes(cache) * cache.max_size
    return cache.nbytes if isinstance(cache, ArraysCache) else 0


def _check_batch(model: nn.Module, name: str) -> None:
    """Compare a small batch of rows of different lengths with the same rows alone.

    The tolerance is far above the rounding of the model's type and below the error from padding.
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
    """[B, V] log-probabilities after each row's last token, as the engine computes; their type."""
    batch = PromptProcessingBatch(
        model, list(range(len(rows))), [make_prompt_cache(model) for _ in rows]
    )
    batch.prompt([list(row[:-1]) for row in rows])
    last = mx.array([[row[-1]] for row in rows])
    logits = model(last, cache=batch.prompt_cache)[:, -1]
    return np.array(nn.log_softmax(logits.astype(mx.float32), axis=-1)), logits.dtype
