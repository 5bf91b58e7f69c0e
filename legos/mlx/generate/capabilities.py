"""What the caches of a loaded model support, found by running a few tokens through it once."""

from dataclasses import dataclass

from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from legos.errors import ModelError
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.serving_check import check_serving
from legos.mlx.generate.slot_cache import growth
from legos.mlx.model.faults import raise_fault
from legos.mlx.model.forecast import Sizes, cache_leaves
from legos.mlx.model.forward import WAY_OUT, CausalModel, architecture

# Where a row is longer than one chunk and the chunk is not a multiple of the step of mlx-lm's
# ``ssm_attn``, ``ssm_attn`` keeps the state of a wrong position (seen in 0.32.2, falcon_h1).
STATE_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Cache sizes and chunk size of a model that can be served in batches."""

    sizes: Sizes  # what its memory depends on
    prompt_step: int  # a prompt is processed in chunks of a multiple of this many tokens
    shares_prefix: bool = False  # whether rows may continue a prefix that is in memory once

    def cache_bytes(self, num_rows: int, num_tokens: int, max_new: int) -> int:
        """Upper bound of the device memory of a batch's cache, in bytes.

        Args:
            num_rows: number of rows in the batch.
            num_tokens: tokens of its longest row; every row is allocated at this length.
            max_new: the most tokens that a row adds to its prompt; by these, a row of any length
                may grow at once.
        """
        most = num_tokens + growth(max_new)
        return num_rows * (self.sizes.row_bytes + most * self.sizes.token_bytes)


def probe(forward: CausalModel, slots: AdapterSlots) -> Capabilities:
    """Find the capabilities of a model; call it on the thread that owns the module tree.

    Raises:
        ModelError: the engine cannot serve the model: the cache of a layer cannot be batched, the
            model cannot be run with one, or rows of a batch give other results than alone.
    """
    model = forward.model
    name = architecture(model)
    try:
        leaves = cache_leaves(model)
    except Exception as error:  # of mlx-lm's code for this architecture, whatever it is
        raise_fault(error)
        raise ModelError(
            f"{name} cannot be served: {type(error).__name__}: {error}; {WAY_OUT}"
        ) from error
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
    step = STATE_STEP if any(isinstance(leaf, ArraysCache) for leaf in leaves) else 1
    shares = check_serving(forward, slots, step=step)
    return Capabilities(sizes=Sizes.of(model), prompt_step=step, shares_prefix=shares)
