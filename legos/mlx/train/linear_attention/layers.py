"""Recurrent layers of a trainer's tree call the forms in chunks instead of mlx-lm's loops."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update

from legos.mlx.model.retyped import calling
from legos.mlx.train.linear_attention.delta_rule import gated_delta_rule

__all__ = ["compute_in_chunks"]

_IN_CHUNKS: Mapping[Callable[..., Any], Callable[..., Any]] = {gated_delta_update: gated_delta_rule}
"""Function of mlx-lm -> the function of the same arguments that layers call instead."""


def compute_in_chunks(model: nn.Module) -> None:
    """Make the layers of a tree that call such a function of mlx-lm call ours.

    Only modules of this tree change their class; those of the engine's tree keep theirs.
    """
    for _, module in model.named_modules():
        module.__class__ = _in_chunks(type(module))


@cache
def _in_chunks(kind: type[nn.Module]) -> type[nn.Module]:
    return calling(kind, _IN_CHUNKS, "InChunks")
