"""Check that an adapter's arrays fit a model."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from legos.errors import AdapterError

__all__ = ["check_finite", "check_shapes", "nothing_to_adapt"]


def check_shapes(
    arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, name: str
) -> None:
    """Refuse LoRA arrays of another model, rank or kind.

    Args:
        arrays: name -> array of the adapter.
        shapes: name -> expected shape.
        name: name of the adapter, for messages.

    Raises:
        AdapterError: an array is missing, unknown, or of another shape or rank; the message names
            the first.
    """
    for key in sorted(shapes.keys() | arrays.keys()):
        hint = _dora_hint(arrays, shapes)
        if key not in arrays:
            raise AdapterError(f"adapter {name!r} lacks {key}; the model has LoRA there{hint}")
        if key not in shapes:
            raise AdapterError(f"adapter {name!r} holds {key}, where this model has no LoRA{hint}")
        have, want = tuple(arrays[key].shape), tuple(shapes[key])
        if have != want:
            hint = _rank_hint(have, want, axis=-1 if key.endswith("lora_a") else -2)
            raise AdapterError(f"adapter {name!r}: {key} has shape {have}, expected {want}{hint}")


def nothing_to_adapt(kinds: Collection[str]) -> AdapterError:
    """The error for a model in which LoRA has no module to adapt.

    Args:
        kinds: names of the classes of the layers' modules with weights; none: no layer was chosen.
    """
    if not kinds:
        advice = "ask for at least one layer or the output head"
    else:
        advice = (
            f"the layers compute with {', '.join(sorted(kinds))}, which takes no LoRA; take a copy "
            "of the model with plain linear modules, or one that MLX has quantised"
        )
    return AdapterError(f"LoRA would adapt nothing: {advice}")


def check_finite(arrays: Mapping[str, Any], *, name: str) -> None:
    """Refuse LoRA arrays with values that are not finite.

    Args:
        arrays: name -> array that NumPy can read.
        name: name of the adapter, for messages.

    Raises:
        AdapterError: the message names the first array.
    """
    for key in sorted(arrays):
        if not np.isfinite(np.asarray(arrays[key])).all():
            raise AdapterError(f"adapter {name!r}: {key} holds values that are not finite")


def _dora_hint(arrays: Iterable[str], expected: Iterable[str]) -> str:
    """Advice where only one of both has DoRA's magnitudes."""
    has, wants = (any(key.endswith(".m") for key in keys) for keys in (arrays, expected))
    if has == wants:
        return ""
    return f"; set training.use_dora to {str(has).lower()}"


def _rank_hint(have: tuple[int, ...], want: tuple[int, ...], *, axis: int) -> str:
    """Advice where the rank differs."""
    if len(have) < 2 or len(have) != len(want) or have[axis] == want[axis]:
        return ""
    return (
        f"; it has rank {have[axis]} and the model was set up for {want[axis]}: "
        f"start with --training.lora-rank {have[axis]}"
    )
