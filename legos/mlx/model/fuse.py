"""Merge an adapter into the model that it was trained on, and write a model folder."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.utils import dequantize_model, save_model
from numpy.typing import NDArray

from legos.errors import AdapterError
from legos.mlx.model.forward import all_logits
from legos.mlx.model.load import CHECKED, base_arrays, free_memory, load_tree, weights_bytes
from legos.mlx.model.lora import LORA, check_foreign, lora_arrays, other_lora, set_lora_arrays
from legos.mlx.model.rotary import rotary_settings
from legos.weights.adapter import Adapter
from legos.weights.fits import check_arrays, own_names
from legos.weights.reference import Lora

logger = logging.getLogger(__name__)
_COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_REPLACED = ("config.json", "model.safetensors.index.json", "adapter_config.json")
PROBE = (4, 32)  # rows and tokens on which the merged model is compared with the adapter
MEAN_GAP = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.25}
"""Nats that a token's log-probability may move by on average, as the sum is rounded to the base's
type; single ones move by several times that."""
_QUANTISED = ("quantization", "quantization_config")  # in mlx-lm's and in the hub's config.json


def set_adapter(model: nn.Module, adapter: Adapter) -> None:
    """Set the LoRA arrays of a tree to those of an adapter.

    Raises:
        AdapterError: the arrays do not fit.
    """
    set_lora_arrays(model, _fitting(model, adapter))


def logits_under(
    model: nn.Module, adapter: Adapter | None, input_ids: Sequence[int]
) -> NDArray[np.float32]:
    """[T, V] next-token logits under an adapter, or none; the tree keeps its own LoRA arrays.

    Raises:
        AdapterError: the arrays do not fit.
    """
    lora = None
    if adapter is not None:
        lora = Lora(arrays=_fitting(model, adapter), scale=adapter.shape.scale)
    with other_lora(model, lora):
        return all_logits(model, input_ids)


def _fitting(model: nn.Module, adapter: Adapter) -> dict[str, mx.array]:
    """An adapter's arrays on the device, after a check that they fit."""
    check_foreign(model, adapter)
    shapes = {name: array.shape for name, array in lora_arrays(model).items()}
    named = own_names(adapter.arrays, {name.rpartition(".")[0] for name in shapes})
    arrays = {name: mx.array(np.asarray(array)) for name, array in named.items()}
    check_arrays(arrays, shapes, name=f"v{adapter.version}")
    return arrays


def write_checked(model: nn.Module, source: Path, folder: Path, vocabulary: int) -> float | None:
    """Run ``write_fused``, and compare the written model with the model that has the adapter.

    Args:
        model: module tree with LoRA; it has no arrays afterwards.
        source: the base model's folder.
        folder: existing folder to write to.
        vocabulary: token ids of the probe are below it.

    Returns:
        The mean difference of a token's log-probability, nats; None: a merged model of this size
        cannot be loaded here, so it was not compared.

    Raises:
        AdapterError: the difference exceeds the tolerance of the model's type.
    """
    dtype = weights_dtype(base_arrays(model))
    ids = np.random.default_rng(0).integers(vocabulary, size=PROBE)
    applied = probe_logprobs(model, ids)
    write_fused(model, source, folder)
    mx.clear_cache()  # so that two models need not fit into memory
    needed, free = CHECKED * weights_bytes(folder), free_memory()
    if needed > free:
        logger.warning(
            "the merged model is not compared with the adapter, because loading it takes %.1f GiB "
            "of memory and %.1f GiB can be used",
            needed / 2**30,
            free / 2**30,
        )
        return None
    gap = float(np.abs(probe_logprobs(load_tree(folder), ids) - applied).mean())
    if not gap <= MEAN_GAP[dtype]:
        raise AdapterError(
            f"the merged model's log-probabilities differ by {gap:.3g} nats on average from those "
            f"with the adapter applied; at most {MEAN_GAP[dtype]} is expected in {dtype}: "
            "export the adapter by itself, --format mlx or peft"
        )
    return gap


def write_fused(model: nn.Module, source: Path, folder: Path) -> None:
    """Merge LoRA into its linear modules, and write the model into an existing folder.

    W' = W + scale * (A B)^T in the type of W. A quantised model is written in the type of its
    scales, because quantising the sum again would lose the adapter.

    Args:
        model: module tree with LoRA; its arrays are released as they are written.
        source: the base model's folder, whose tokenizer and other small files are copied.
        folder: existing folder to write to.
    """
    fused = [
        (name, module.fuse(dequantize=True))
        for name, module in model.named_modules()
        if isinstance(module, LORA)
    ]
    model.update_modules(tree_unflatten(fused))
    dequantize_model(model)
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.name not in _REPLACED:
                shutil.copyfile(file, folder / file.name)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    config |= rotary_settings(config)  # so that mlx-lm alone reads them as well
    kept = {key: value for key, value in config.items() if key not in _QUANTISED}
    (folder / "config.json").write_text(json.dumps(kept, indent=2) + "\n")
    save_model(folder, model, donate_model=True)


def probe_logprobs(model: nn.Module, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """[R, T - 1] log-probabilities (nats) of each row's tokens, given the tokens before them."""
    tokens = mx.array(rows)
    logits = model(tokens)[:, :-1].astype(mx.float32)
    chosen = mx.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return np.array(chosen - mx.logsumexp(logits, axis=-1))


def weights_dtype(arrays: Mapping[str, mx.array]) -> str:
    """The narrowest float type among a model's arrays: "float32", "bfloat16" or "float16"."""
    kinds = {str(array.dtype).removeprefix("mlx.core.") for array in arrays.values()}
    return next((kind for kind in ("bfloat16", "float16") if kind in kinds), "float32")
