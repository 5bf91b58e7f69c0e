"""Checks on a few tokens that a model can be trained, and by which of the trainer's methods.

Three rows are computed in turn as whole rows, with their common prefixes computed once, and with
gradient checkpointing. All must give the same hidden states and the same gradients, in float32.
Only the last layers are differentiated, as many as show every kind among them, and one row at a
time, so that the check needs little memory beside the weights.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from legos.errors import TrainerError
from legos.mlx.model.faults import raise_fault
from legos.mlx.model.float32 import LARGEST_GAP, in_float32
from legos.mlx.model.forward import WAY_OUT, CausalModel, architecture
from legos.mlx.model.load import BY_TOKEN
from legos.mlx.model.lora import adapted_layers, lora_arrays
from legos.mlx.model.machine import on_metal
from legos.mlx.train.prefix_sharing.kv import run_pass
from legos.mlx.train.prefix_sharing.plan import Pass, make_block
from legos.mlx.train.prefix_sharing.trie import NO_PARENT, Segment, Trie
from legos.mlx.train.rematerialisation import rematerialise_layers

logger = logging.getLogger(__name__)
Outputs = Callable[[], list[mx.array]]
Results = list[mx.array]
"""Hidden states of each row, and the gradient of each differentiated array."""

PERIOD = 8  # layers among which every kind of a model's last layers is found
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
    _check_tied(name, model, forward)

    def row(number: int) -> list[mx.array]:
        tokens = np.concatenate([_TRIE.segments[one].tokens for one in _TRIE.path(number)])
        return [forward.trunk(mx.array(tokens[None]))[0, _TRIE.segments[number].start :]]

    def shared() -> list[mx.array]:
        found, _ = run_pass(forward.trunk, _SHARED, len(make_prompt_cache(model)))
        lengths = [len(segment.tokens) for segment in _ENDS.segments]
        return [found[-1][row, :length] for row, length in enumerate(lengths)]

    layers = _last_of_every_kind(model)
    whole = [partial(row, number) for number in _TRIE.row_segment]
    with in_float32(model, layers):
        trained = _trained(model, layers)
        expected = _tried(name, model, trained, whole)
        try:
            found = _results(model, trained, [shared])
        except Exception as error:  # any error means that this architecture cannot share prefixes
            raise_fault(error)
            logger.info("shared prefixes are off: %s: %s", type(error).__name__, error)
            found = None
        if found is not None and not (gap := _gap(found, expected)) <= LARGEST_GAP:
            logger.info("shared prefixes are off: they change the gradient by %.2g", gap)
            found = None
    if checkpointing and rematerialise_layers(model):
        again = [whole] if found is None else [whole, [shared]]
        with in_float32(model, layers):
            gap = max(_gap(_tried(name, model, trained, way), expected) for way in again)
        if not gap <= LARGEST_GAP:
            raise TrainerError(
                f"{name}: with gradient checkpointing, the gradient of a LoRA array differs by "
                f"{gap:.2g} of its norm; set training.gradient_checkpointing to false"
            )
    return found is not None


def _check_tied(name: str, model: nn.Module, forward: CausalModel) -> None:
    """Refuse a trained embedding that is the output head too: it would get no gradient as head.

    Raises:
        TrainerError: there is one.
    """
    if forward.head_module is not None or forward.trunk is model:
        return
    for key in lora_arrays(model):
        if BY_TOKEN.intersection(key.split(".")):
            raise TrainerError(
                f"{name}: {key} is trained, but the embedding is the output head as well, which "
                "gets no gradient; freeze it and train LoRA on the layers, or take a model whose "
                "head is not tied to its embedding"
            )


def _last_of_every_kind(model: nn.Module) -> list[nn.Module]:
    """The last layers with LoRA, from the last one that begins to show every kind among them."""
    layers = adapted_layers(model)[-PERIOD:]
    kinds = [tuple((name, type(m)) for name, m in layer.named_modules()) for layer in layers]
    first = min((len(kinds) - 1 - kinds[::-1].index(kind) for kind in set(kinds)), default=0)
    return layers[first:]


def _trained(model: nn.Module, layers: Sequence[nn.Module]) -> dict[str, mx.array]:
    """Name -> trained array of some layers."""
    inside = {id(array) for layer in layers for array in lora_arrays(layer).values()}
    return {name: array for name, array in lora_arrays(model).items() if id(array) in inside}


def _tried(
    name: str, model: nn.Module, trained: Mapping[str, mx.array], passes: Sequence[Outputs]
) -> Results:
    try:
        return _results(model, trained, passes)
    except Exception as error:  # any error means that this architecture cannot be trained
        raise_fault(error)
        advice = "train it on the CPU with LEGOS_DEVICE=cpu in the environment, or "
        raise TrainerError(
            f"{name} cannot be trained: its gradient fails with {type(error).__name__}: {error}; "
            f"{advice if on_metal() else ''}{WAY_OUT}"
        ) from error


def _results(
    model: nn.Module, trained: Mapping[str, mx.array], passes: Sequence[Outputs]
) -> Results:
    """The outputs of all passes, and the sum of their gradients for fixed cotangents."""

    def loss(parameters: Any, outputs: Outputs) -> tuple[mx.array, list[mx.array]]:
        model.update(parameters)
        found = outputs()
        terms = [mx.sum(out * mx.cos(mx.arange(out.size).reshape(out.shape))) for out in found]
        return mx.sum(mx.stack(terms)), found

    before: Any = tree_unflatten(list(trained.items()))
    results: Results = []
    total: Any = tree_map(mx.zeros_like, before)
    for outputs in passes:
        if trained:
            (_, found), gradients = mx.value_and_grad(loss)(before, outputs)
            total = tree_map(mx.add, total, gradients)
        else:  # LoRA is on the head alone, which every method runs alike
            found = outputs()
        results += found
        mx.eval(results, total)
    model.update(before)
    gradients: Any = tree_flatten(total)
    return [*results, *(array for _, array in gradients)]


def _gap(found: Results, expected: Results) -> float:
    """Largest norm of an array's difference, relative to the norm of the array.

    Arrays much smaller than the largest count relative to a thousandth of the largest.
    """
    norms = [_norm(array) for array in expected]
    floor = max(1e-3 * max(norms), 1e-30)
    pairs = zip(found, expected, norms, strict=True)
    gaps = [_norm(one - other) / max(norm, floor) for one, other, norm in pairs]
    return max(gaps) if np.isfinite(gaps).all() else float("inf")


def _norm(array: mx.array) -> float:
    return float(np.linalg.norm(np.array(array.astype(mx.float32))))
