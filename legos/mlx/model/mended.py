"""Modules of mlx-lm that compute something else in a batch than alone, mended after loading."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma2

__all__ = ["mend"]


class _GroupedAttention(gemma2.Attention):
    """Its scores have an axis more where heads share keys, which the mask of a batch lacks."""

    def __call__(
        self, x: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mask[:, None]  # [B, 1, 1, L, T], for scores [B, groups, heads of one, L, T]
        return super().__call__(x, mask, cache)


_MENDED: dict[type[nn.Module], type[nn.Module]] = {gemma2.Attention: _GroupedAttention}


def mend(model: nn.Module) -> None:
    """Replace the classes of such modules by ours; their arrays stay as they are."""
    for _, module in model.named_modules():
        if (mended := _MENDED.get(type(module))) is not None:
            module.__class__ = mended
