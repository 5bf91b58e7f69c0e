"""Next-token logits, computed only at the positions that need them.

R rows, T tokens, P logit positions, V vocabulary, H hidden size.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

__all__ = ["CausalModel", "all_logits"]

logger = logging.getLogger(__name__)


class CausalModel:
    """A module tree split into trunk and output head, where its architecture allows it.

    The split is used only if head and trunk reproduce the model's logits on a probe; otherwise (a
    model that scales or caps its logits elsewhere) the whole model is run.

    Attributes:
        model: the module tree.
        trunk: maps token ids to hidden states [R, T, H]; the whole model where it is not split.
        head: maps hidden states to logits; the identity where the model is not split.
        head_module: the ``lm_head`` module; None where there is none or the model is not split.
        num_vocabulary: vocabulary size V.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        parts = _parts(model)
        if parts is not None:
            trunk, head = parts
            probe = mx.array([[1, 2, 1]])
            if not mx.allclose(head(trunk(probe)), model(probe), rtol=1e-4, atol=1e-4).item():
                logger.info("trunk and head do not give the model's logits; it runs as a whole")
                parts = None
        self.num_vocabulary: int = model(mx.array([[1]])).shape[-1]
        own = model.get("lm_head") if parts else None
        self.head_module: nn.Module | None = own if isinstance(own, nn.Module) else None
        self.trunk: Callable[..., mx.array]
        self.head: Callable[[mx.array], mx.array]
        self.trunk, self.head = parts or (model, _as_it_is)

    def logits_at(self, input_ids: mx.array, rows: mx.array, columns: mx.array) -> mx.array:
        """[P, V] float32 logits at P positions of right-padded rows [R, T], without a cache."""
        return self.head(self.trunk(input_ids)[rows, columns]).astype(mx.float32)

    def next_logits(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """[B, V] float32 logits after one more token of each of B cached rows."""
        return self.model(tokens[:, None], cache=cache)[:, -1, :].astype(mx.float32)


def _as_it_is(logits: mx.array) -> mx.array:
    return logits


def _parts(model: nn.Module) -> tuple[Callable[..., mx.array], Callable[..., mx.array]] | None:
    """Trunk and head of a model with mlx-lm's usual layout; None for other layouts."""
    trunk = model.get("model")
    if not isinstance(trunk, nn.Module):
        return None
    whole: Any = model
    if isinstance(model.get("lm_head"), nn.Module):
        return trunk, lambda hidden: whole.lm_head(hidden)
    embedding: Any = trunk.get("embed_tokens")
    return (trunk, embedding.as_linear) if hasattr(embedding, "as_linear") else None


def all_logits(model: nn.Module, input_ids: Sequence[int]) -> NDArray[np.float32]:
    """[T, V] next-token logits after each of T tokens of one row."""
    logits = model(mx.array([list(input_ids)]))[0].astype(mx.float32)
    return np.array(logits)
