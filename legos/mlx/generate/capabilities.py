"""What the caches of a loaded model support, found by running a few tokens through it once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from legos.errors import ModelError
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.serving_check import check_serving
from legos.mlx.model.forward import WAY_OUT, CausalModel, architecture

__all__ = ["Capabilities", "probe"]

# Where a row is longer than one chunk and the chunk is not a multiple of the step of mlx-lm's
# ``ssm_attn``, ``ssm_attn`` keeps the state of a wrong position (seen in 0.32.2, falcon_h1).
STATE_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Cache sizes and chunk size of a model that can be served in batches."""

    architecture: str
    caches: tuple[str, ...]  # class names of the layers' caches, sorted
    bytes_per_token: int  # bytes per token and row, in the layers that keep every token
    bytes_per_row: int  # bytes per row of any length: its states, and its full sliding windows
    block_tokens: int  # tokens that a layer which keeps every token allocates at once
    prompt_step: int  # a prompt is processed in chunks of a multiple of this many tokens
    no_adapters: str | None = None  # why adapters cannot be served; None where they can

    def cache_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Upper bound of the device memory of a batch's cache, in bytes.

        Args:
            num_rows: number of rows in the batch.
            num_tokens: tokens of its longest row; every row is allocated at this length.
        """
        most = num_tokens + self.block_tokens - 1  # a block is added to a row of any length
        return num_rows * (self.bytes_per_row + most * self.bytes_per_token)


def probe(forward: CausalModel, slots: AdapterSlots) -> Capabilities:
    """Find the capabilities of a model; call it on the thread that owns the module tree.

    Raises:
        ModelError: the engine cannot serve the model: the cache of a layer cannot be batched, the
            model cannot be run with one, or rows of a batch give other results than alone.
    """
    model = forward.model
    name = architecture(model)
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
    try:
        mx.eval(model(mx.array([[1]]), cache=caches))
    except Exception as error:  # of mlx-lm's code for this architecture, whatever it is
        raise ModelError(
            f"{name} cannot be served: {type(error).__name__}: {error}; {WAY_OUT}"
        ) from error
    step = STATE_STEP if any(isinstance(leaf, ArraysCache) for leaf in leaves) else 1
    return Capabilities(
        architecture=name,
        caches=tuple(sorted({type(leaf).__name__ for leaf in leaves})),
        bytes_per_token=sum(_token_bytes(leaf) for leaf in leaves if isinstance(leaf, KVCache)),
        bytes_per_row=sum(_row_bytes(leaf) for leaf in leaves),
        block_tokens=KVCache.step,
        prompt_step=step,
        no_adapters=check_serving(forward, slots, step=step),
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
