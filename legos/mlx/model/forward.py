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

from legos.errors import ModelError
from legos.mlx.model.faults import raise_fault
from legos.mlx.model.float32 import in_float32

logger = logging.getLogger(__name__)
WAY_OUT = "take a model of another architecture, such as llama, qwen3 or gemma3"
Head = Callable[[mx.array], mx.array]
Parts = tuple[Callable[..., mx.array], Head]


class CausalModel:
    """A module tree split into trunk and output head, where its architecture allows it.

    The split is used only if head and trunk reproduce the model's logits on a probe; otherwise the
    whole model is run.

    Attributes:
        model: the module tree.
        trunk: maps token ids to hidden states [R, T, H]; the whole model where it is not split.
        head_module: the ``lm_head`` module; None where there is none or the model is not split.
        num_vocabulary: vocabulary size V.
        num_logits: rows of the output head, all of which are computed at every position.
    """

    def __init__(self, model: nn.Module, num_vocabulary: int | None = None) -> None:
        """Run the probe.

        Args:
            model: the module tree.
            num_vocabulary: logits of further token ids, for which a padded head has rows but the
                tokenizer no tokens, are left out; None: there are none.

        Raises:
            ModelError: the model cannot be run, or not in its own type on this device.
        """
        self.model = model
        probe = mx.array([[1, 2, 1]])
        try:
            mx.eval(model(probe))  # in its own type, for which this device may have no kernel
            with in_float32(model):
                expected = model(probe)
                mx.eval(expected)
        except Exception as error:  # of mlx-lm's code for this architecture, whatever it is
            raise_fault(error)
            raise ModelError(
                f"{architecture(model)} cannot be run: {type(error).__name__}: {error}; {WAY_OUT}"
            ) from error
        self.num_logits: int = expected.shape[-1]
        self.num_vocabulary: int = min(num_vocabulary or self.num_logits, self.num_logits)
        parts = split(model)
        if parts is not None and not _reproduces(model, parts, probe, expected):
            logger.info("trunk and head do not give the model's logits; it runs as a whole")
            parts = None
        head = output_head(model) if parts else None
        self.head_module: nn.Module | None = head[1] if head else None
        self.trunk: Callable[..., mx.array]
        self.trunk, self._head = parts or (model, lambda logits: logits)

    def head(self, hidden: mx.array) -> mx.array:
        """[..., V] logits of hidden states [..., H]; the same logits where it is not split."""
        return self._sampled(self._head(hidden))

    def logits_at(
        self,
        input_ids: mx.array,
        rows: mx.array,
        columns: mx.array,
        cache: list[Any] | None = None,
    ) -> mx.array:
        """[P, V] float32 logits at P positions of right-padded rows [R, T].

        Args:
            input_ids: the rows.
            rows: [P] row of each position.
            columns: [P] its column.
            cache: of each layer, with what the rows continue; None: they continue nothing.
        """
        return self.head(self.trunk(input_ids, cache=cache)[rows, columns]).astype(mx.float32)

    def next_logits(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """[B, V] logits, in the model's type, after one more token of each of B cached rows."""
        return self._sampled(self.model(tokens[:, None], cache=cache)[:, -1, :])

    def _sampled(self, logits: mx.array) -> mx.array:
        """The logits of the token ids that can be sampled."""
        padded = self.num_vocabulary < self.num_logits
        return logits[..., : self.num_vocabulary] if padded else logits


def architecture(model: nn.Module) -> str:
    """The ``model_type`` of a tree, or the name of its module in mlx-lm."""
    return str(getattr(model, "model_type", type(model).__module__.rpartition(".")[2]))


def output_head(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Name and module of the output head, also inside a wrapped text model; None where tied."""
    found = [(n, m) for n, m in model.named_modules() if n.rpartition(".")[2] == "lm_head"]
    return min(found, key=lambda pair: len(pair[0]), default=None)


def split(model: nn.Module) -> Parts | None:
    """Trunk and head of a model with mlx-lm's usual layout, or of the text model inside of it."""
    modules = sorted(model.named_modules(), key=lambda pair: pair[0].count(".") + bool(pair[0]))
    return next(filter(None, (_parts(whole) for _, whole in modules)), None)


def _parts(whole: Any) -> Parts | None:
    trunk = whole.get("model") or whole.get("transformer") or whole.get("backbone")
    if not isinstance(trunk, nn.Module):
        return None
    embedding: Any = trunk.get("embed_tokens") or trunk.get("wte") or trunk.get("embeddings")
    if isinstance(whole.get("lm_head"), nn.Module):
        # Found at each call: one with LoRA may have replaced it meanwhile.
        return _trunk(trunk), _finished(whole, lambda hidden: whole["lm_head"](hidden))
    if hasattr(embedding, "as_linear"):
        # Found at each call: a check may have changed the embedding's class meanwhile.
        return _trunk(trunk), _finished(whole, lambda hidden: embedding.as_linear(hidden))
    return None


def _trunk(module: Any) -> Callable[..., mx.array]:
    """A trunk whose cache is optional, as it is not in every architecture."""
    return lambda input_ids, cache=None: module(input_ids, cache=cache)


def _finished(whole: nn.Module, head: Head) -> Head:
    """The head with what its model does to the logits: cohere, granite and gemma scale or cap."""
    settings = vars(getattr(whole, "args", None) or getattr(whole, "config", whole))
    names = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    scale, divisor, cap = map(settings.get, names)

    def finished(hidden: mx.array) -> mx.array:
        logits = head(hidden)
        if scale:
            logits = logits * scale
        if divisor:
            logits = logits / divisor
        return mx.tanh(logits / cap) * cap if cap else logits

    return finished if scale or divisor or cap else head


def _reproduces(model: nn.Module, parts: Parts, probe: mx.array, expected: mx.array) -> bool:
    """Whether trunk and head give the model's logits."""
    trunk, head = parts
    try:
        with in_float32(model):
            return bool(mx.allclose(head(trunk(probe)), expected, rtol=1e-4, atol=1e-4).item())
    except Exception as error:  # the layout is not what it looks like
        raise_fault(error)
        logger.info("trunk and head fail apart: %s: %s", type(error).__name__, error)
        return False


def all_logits(model: nn.Module, input_ids: Sequence[int]) -> NDArray[np.float32]:
    """[T, V] next-token logits after each of T tokens of one row."""
    logits = model(mx.array([list(input_ids)]))[0].astype(mx.float32)
    return np.array(logits)
