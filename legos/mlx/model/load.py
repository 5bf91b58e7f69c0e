"""Load a model folder once for each thread; the threads share the base arrays."""

import json
import logging
import resource
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import psutil
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import load_model as load_mlx_model

from legos.errors import ModelError
from legos.mlx.model.faults import raise_fault
from legos.mlx.model.machine import on_metal, usable_bytes
from legos.mlx.model.patched import patch
from legos.mlx.model.rotary import rotary_settings
from legos.weights.model_folder import WAY_OUT, quantised_by

logger = logging.getLogger(__name__)
CHECKED = 1.1  # peak of memory while a model is loaded and checked / its weights, with 36 layers
REFUSED = {"phi3small": "mlx-lm's code for it corrupts the memory of the process"}
BY_TOKEN = frozenset(("embed_tokens", "wte", "embed_in", "embeddings", "tok_embeddings", "lm_head"))
"""Names of the modules that have a row for each token."""


def load_tree(folder: Path, *, share: dict[str, mx.array] | None = None) -> nn.Module:
    """Build the module tree of a model on the calling thread.

    Args:
        folder: model folder in MLX or hub format.
        share: evaluated arrays of another tree of the same model. The new tree uses them instead of
            loading its own, so that both trees share one copy of the weights.

    Returns:
        The module in evaluation mode, frozen, its arrays evaluated.

    Raises:
        ModelError: the model does not fit into memory, is quantised for torch alone, or mlx-lm
            cannot load it.
        DeviceError: the device failed.
    """
    if share is None:
        _check_quantisation(folder)
        _check_memory(folder)
    model = _built(folder, lazy=share is not None)
    if share is not None:
        model.update(tree_unflatten(list(share.items())))
    model.eval()
    model.freeze()
    mx.eval(model.parameters())
    return model


def shapes_of(folder: Path) -> nn.Module:
    """The module tree of a model whose arrays are not read: only shapes and types are known.

    Raises:
        ModelError: it is quantised for torch alone, or mlx-lm cannot build it.
    """
    _check_quantisation(folder)
    model = _built(folder, lazy=True)
    model.freeze()
    return model


def _built(folder: Path, *, lazy: bool) -> nn.Module:
    try:
        config = json.loads((folder / "config.json").read_text())
        model, _ = load_mlx_model(folder, lazy=lazy, model_config=rotary_settings(config))
    except Exception as error:
        raise_fault(error)
        first, _, more = f"{error}".partition("\n")
        reason = f"{first.rstrip()} ..." if more else first
        raise ModelError(f"{folder} cannot be loaded: {reason}; {WAY_OUT}") from error
    patch(model)
    return model


def _check_quantisation(folder: Path) -> None:
    """Refuse weights that only torch can read.

    Raises:
        ModelError: they are of bitsandbytes.
    """
    if quantised_by(json.loads((folder / "config.json").read_text())) == "bitsandbytes":
        raise ModelError(
            f"{folder} holds weights of bitsandbytes, which MLX cannot read; train with --device "
            "torch, or take the model without quantisation or in 4 bits of MLX"
        )


def _check_memory(folder: Path) -> None:
    """Refuse weights that do not fit into memory next to their check; MLX would hang.

    Raises:
        ModelError: they do not fit; the message gives the sizes.
    """
    size, free = weights_bytes(folder), free_memory()
    if CHECKED * size > free:
        raise ModelError(
            f"{folder} has {size / 2**30:.1f} GiB of weights but {free / 2**30:.1f} GiB of memory "
            f"can be used, and loading and checking them takes {CHECKED * size / 2**30:.1f} GiB; "
            "close other programs, or take a copy of the model in 4 bits or a smaller model"
        )


def weights_bytes(folder: Path) -> int:
    """Bytes of the weights of a model folder."""
    return sum(file.stat().st_size for file in folder.glob("model*.safetensors"))


def free_memory() -> int:
    """Bytes that may still be allocated; on a Mac, which frees memory late, all that ever may."""
    memory = psutil.virtual_memory()
    if sys.platform == "darwin":
        return usable_bytes() if on_metal() else memory.total
    free = memory.available + psutil.swap_memory().free
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return free
    return min(free, max(limit - psutil.Process().memory_info().vms, 0))


def base_arrays(model: nn.Module) -> dict[str, mx.array]:
    """Name -> array of a newly loaded tree, to share with another tree."""
    return dict(tree_flatten(model.parameters()))


def num_token_ids(model: nn.Module) -> int:
    """Number of token ids that a tree takes and gives: the rows of its embedding and its head.

    Where these have other names, it is what the configuration says. A larger id would read memory
    behind the embedding.
    """
    rows = [
        module["weight"].shape[0]
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in BY_TOKEN and "weight" in module
    ]
    stated = getattr(getattr(model, "args", None), "vocab_size", None)
    return min(rows, default=stated or 1 << 31)
