"""Small random models of mlx-lm's architectures, built in memory.

``small_models.json`` has the configurations: "common" fields, which every architecture takes what
it knows of, the fields of each architecture's "own", and the "inner" architecture of the text model
where a model wraps one.
"""

import importlib
import json
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx.utils import tree_flatten, tree_unflatten

__all__ = ["VOCABULARY", "architectures", "small_model"]

VOCABULARY = 64  # tokens
_VARIANTS = {"gemma4_moe": "gemma4_text"}  # name -> module of mlx-lm
_NO_MODELS = (  # modules of mlx_lm.models that define no architecture
    "activations", "base", "bitlinear_layers", "cache", "gated_delta", "gear", "mla", "pipeline",
    "rope_utils", "ssm", "switch_layers",
)  # fmt: skip


def architectures() -> list[str]:
    """Names of the architectures that the installed mlx-lm has, and of variants of them."""
    found = {module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)}
    return sorted(found - {*_NO_MODELS} | {*_VARIANTS})


def small_model(
    architecture: str, *, seed: int = 0, dtype: mx.Dtype = mx.float32, **fields: Any
) -> nn.Module:
    """Build a random model of 2 to 8 layers and width 32, frozen and evaluated.

    Args:
        architecture: one of ``architectures``.
        seed: seed of the weights.
        dtype: type of the weights.
        fields: fields of the configuration that differ from those of the file.

    Raises:
        Exception: whatever mlx-lm raises where it cannot build a model from the configuration.
    """
    module = importlib.import_module(f"mlx_lm.models.{_VARIANTS.get(architecture, architecture)}")
    mx.random.seed(seed)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(_config(architecture) | fields))
    drawn: list[tuple[str, Any]] = []
    arrays: Any = tree_flatten(model.parameters())
    for name, array in arrays:
        if mx.issubdtype(array.dtype, mx.floating):
            noise = mx.random.normal(array.shape)
            wide = array.ndim > 1
            drawn.append((name, noise / array.shape[-1] ** 0.5 if wide else array + 0.1 * noise))
    model.update(tree_unflatten(drawn))
    model.set_dtype(dtype)
    model.eval()
    model.freeze()
    mx.eval(model.parameters())
    return model


@cache
def _configs() -> dict[str, Any]:
    return json.loads(Path(__file__).with_suffix(".json").read_text())


def _config(architecture: str) -> dict[str, Any]:
    configs = _configs()
    inner = configs["inner"].get(architecture, architecture)
    own = configs["own"]
    text = {
        **configs["common"],
        "model_type": inner,
        **own.get(inner, {}),
        **own.get(architecture, {}),
    }
    return {**text, "model_type": architecture, "text_config": text}
