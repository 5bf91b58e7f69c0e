"""Checks on a few tokens that a model can be trained, and by which of the trainer's methods.

Three rows are computed in turn as whole rows, with their common prefixes computed once, and with
gradient checkpointing. All must give the same outputs and the same gradients, in float32. This
takes at most four forward and backward passes of about twenty tokens.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from legos.errors import TrainerError
from legos.mlx.model.float32 import LARGEST_GAP, in_float32
from legos.mlx.model.forward import WAY_OUT, CausalModel, architecture
from legos.mlx.model.machine import on_metal
from legos.mlx.train.prefix_sharing.kv import run_pass
from legos.mlx.train.prefix_sharing.plan import Pass, make_block
from legos.mlx.train.prefix_sharing.trie import NO_PARENT, Segment, Trie
from legos.mlx.train.rematerialisation import rematerialise_layers

__all__ = ["check_gradients", "untrainable_on_metal"]

logger = logging.getLogger(__name__)
Outputs = Callable[[], list[mx.array]]
Results = list[tuple[str, mx.array]]

_KERNELS = {"rwkv7": "wkv7_kernel"}  # that mlx-lm calls in training too, and have no gradient
_TRIE = Trie(
    segments=tuple(
        Segment(tokens=np.array(tokens, np.int32), parent=parent, start=start)
        for tokens, parent, start in (
            ((1, 2, 1), NO_PARENT, 0),
            ((3,), 0, 3),
            ((2, 1), 1, 4),
            ((4,), 1, 4),
            ((5, 1, 2, 2), 0, 3),
        )
    ),
    row_segment=(2, 3, 4),
)
"""Three rows, and what they share."""
_ENDS = make_block(_TRIE, _TRIE.row_segment, set())
_SHARED = Pass(
    blocks=(make_block(_TRIE, [0], {0}), make_block(_TRIE, [1], {1}), _ENDS),
    rows=(0, 1, 2),
    carried={},
)


def check_gradients(model: nn.Module, forward: CausalModel, *, checkpointing: bool) -> bool:
    """Check that a model can be trained; checkpoint its layers if asked to.

    Args:
        model: the module tree with LoRA.
        forward: the same tree, split into trunk and head.
        checkpointing: whether to checkpoint the layers.

    Returns:
        Whether rows may share prefixes. They may not where a layer keeps a state instead of keys
        and values; such a model is trained without sharing, which is as exact but slower.

    Raises:
        TrainerError: the gradient cannot be computed, or changes with gradient checkpointing.
    """
    name = architecture(model)
    reason = untrainable_on_metal(name)
    if reason is not None and on_metal():
        raise TrainerError(
            f"{name} {reason}; train it on the CPU with LEGOS_DEVICE=cpu in the environment, or "
            f"{WAY_OUT}"
        )

    def whole() -> list[mx.array]:
        found: list[mx.array] = []
        for number in _TRIE.row_segment:
            row = np.concatenate([_TRIE.segments[one].tokens for one in _TRIE.path(number)])
            hidden = forward.trunk(mx.array(row[None]))
            found.append(forward.head(hidden)[0, _TRIE.segments[number].start :])
        return found

    def shared() -> list[mx.array]:
        found, _ = run_pass(forward.trunk, _SHARED, len(make_prompt_cache(model)))
        lengths = [len(segment.tokens) for segment in _ENDS.segments]
        return [forward.head(found[-1])[row, :length] for row, length in enumerate(lengths)]

    with in_float32(model):
        expected = _tried(name, partial(_results, model, whole))
        _warn_of_idle(name, expected)
        try:
            found = _results(model, shared)
        except Exception as error:  # any error means that this architecture cannot share prefixes
            logger.info("shared prefixes are off: %s: %s", type(error).__name__, error)
            found = None
        if found is not None and not (gap := _gap(found, expected)) <= LARGEST_GAP:
            logger.info("shared prefixes are off: they change the gradient by %.2g", gap)
            found = None
        if checkpointing and rematerialise_layers(model):
            again = [whole] if found is None else [whole, shared]
            gap = max(_gap(_tried(name, partial(_results, model, o)), expected) for o in again)
            if not gap <= LARGEST_GAP:
                raise TrainerError(
                    f"{name}: with gradient checkpointing, the gradient of a LoRA array differs by "
                    f"{gap:.2g} of its norm; set training.gradient_checkpointing to false"
                )
    return found is not None


def untrainable_on_metal(name: str) -> str | None:
    """Why an architecture cannot be trained on the GPU of a Mac; None: no such reason is known."""
    if name not in _KERNELS:
        return None
    return f"cannot be trained on Metal: mlx-lm's {_KERNELS[name]} has no gradient"


def _tried(name: str, compute: Callable[[], Results]) -> Results:
    try:
        return compute()
    except Exception as error:  # any error means that this architecture cannot be trained
        raise TrainerError(
            f"{name} cannot be trained: its gradient fails with {type(error).__name__}: {error}; "
            f"{WAY_OUT}"
        ) from error


def _results(model: nn.Module, outputs: Outputs) -> Results:
    """The evaluated outputs, and the gradient of each trained array for fixed cotangents."""

    def loss(parameters: Any) -> tuple[mx.array, list[mx.array]]:
        model.update(parameters)
        found = outputs()
        terms = [mx.sum(out * mx.cos(mx.arange(out.size).reshape(out.shape))) for out in found]
        return mx.sum(mx.stack(terms)), found

    before: Any = model.trainable_parameters()
    if before:
        (_, found), gradients = mx.value_and_grad(loss)(before)
        model.update(before)
    else:
        found, gradients = outputs(), {}
    arrays: Any = tree_flatten(gradients)
    results: Results = [(f"output {row}", out) for row, out in enumerate(found)] + arrays
    mx.eval(results)
    return results


def _gap(found: Results, expected: Results) -> float:
    """Largest norm of an array's difference, relative to the norm of the array.

    Arrays much smaller than the largest count relative to a thousandth of the largest.
    """
    norms = [_norm(array) for _, array in expected]
    floor = max(1e-3 * max(norms), 1e-30)
    pairs = zip(found, expected, norms, strict=True)
    gaps = [_norm(one - other) / max(norm, floor) for (_, one), (_, other), norm in pairs]
    return max(gaps) if np.isfinite(gaps).all() else float("inf")


def _norm(array: mx.array) -> float:
    return float(np.linalg.norm(np.array(array.astype(mx.float32))))


def _warn_of_idle(name: str, results: Results) -> None:
    """Warn about LoRA that never gets a gradient, because its output is only compared."""
    idle = [key for key, array in results if key.endswith("lora_b") and not mx.any(array).item()]
    if idle:
        logger.warning(
            "%s: %d LoRA modules get no gradient from a few tokens; unless they are experts, they "
            "stay untrained; the first is %s",
            name,
            len(idle),
            idle[0].removesuffix(".lora_b"),
        )
