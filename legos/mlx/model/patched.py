"""Modules of mlx-lm that compute something else in a batch than alone, patched after loading."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma2, nemotron_h
from mlx_lm.models.ssm import ssm_update


class _GroupedAttention(gemma2.Attention):
    """Its scores have an axis more where heads share keys, which the mask of a batch lacks."""

    def __call__(
        self, x: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mask[:, None]  # [B, 1, 1, L, T], for scores [B, groups, heads of one, L, T]
        return super().__call__(x, mask, cache)


class _PaddedMixer(nemotron_h.NemotronHMamba2Mixer):
    """Its state is that after the last token of each row, not after the padding behind it."""

    def _ssm(  # noqa: PLR0917 (mlx-lm calls it by position)
        self,
        hidden_states: mx.array,
        B: mx.array,  # noqa: N803
        C: mx.array,  # noqa: N803
        dt: mx.array,
        cache: Any | None,
        mask: mx.array | None,
    ) -> mx.array:
        limits: Any = self.time_step_limit
        heads, groups = (self.num_heads, self.head_dim), (self.n_groups, self.ssm_state_size)
        mixed, state = ssm_update(
            mx.unflatten(hidden_states, -1, heads),
            self.A_log,
            mx.unflatten(B, -1, groups),
            mx.unflatten(C, -1, groups),
            self.D.astype(hidden_states.dtype),
            dt,
            self.dt_bias,
            None if cache is None else cache[1],
            limits,
            mask,
            None if cache is None else cache.lengths,
        )
        if cache is not None:
            cache[1] = state
        return mixed.flatten(2)


_PATCHED: dict[type[nn.Module], type[nn.Module]] = {
    gemma2.Attention: _GroupedAttention,
    nemotron_h.NemotronHMamba2Mixer: _PaddedMixer,
}


def patch(model: nn.Module) -> None:
    """Replace the classes of such modules by ours; their arrays stay as they are."""
    for _, module in model.named_modules():
        if (patched := _PATCHED.get(type(module))) is not None:
            module.__class__ = patched
