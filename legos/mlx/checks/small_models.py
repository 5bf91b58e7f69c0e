"""Small random models of mlx-lm's architectures, built in memory.

``small_models.json`` has the configurations: "common" fields, which every architecture takes what
it knows of, the fields of each architecture's "own", and the "inner" architecture of the text model
where a model wraps one.
"""

import copy
import importlib
import json
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx.utils import tree_flatten, tree_unflatten

from legos.mlx.model.patched import patch

VOCABULARY, CONTEXT = 64, 1024  # tokens
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

    Models that differ only in their type are the same: bfloat16 holds every weight exactly.

    Args:
        architecture: one of ``architectures``.
        seed: seed of the weights.
        dtype: type of the weights.
        fields: fields of the configuration that differ from those of the file.

    Raises:
        Exception: whatever mlx-lm raises where it cannot build a model from the configuration.
    """
    made, weights = _drawn(architecture, seed, tuple(fields.items()))
    model = made()
    patch(model)  # as when it is loaded
    model.update(tree_unflatten(weights))
    model.set_dtype(dtype)
    model.eval()
    model.freeze()
    mx.eval(model.parameters())
    return model


@lru_cache(maxsize=1)  # a check builds the models of one architecture several times
def _drawn(
    architecture: str, seed: int, fields: tuple[tuple[str, Any], ...]
) -> tuple[Callable[[], nn.Module], list[tuple[str, mx.array]]]:
    """What builds a model, and its random weights in bfloat16."""
    module = importlib.import_module(f"mlx_lm.models.{_VARIANTS.get(architecture, architecture)}")
    settings = module.ModelArgs.from_dict(_config(architecture, dict(fields)))
    mx.random.seed(seed)

    def made() -> nn.Module:
        return module.Model(copy.deepcopy(settings))

    drawn: list[tuple[str, Any]] = []
    arrays: Any = tree_flatten(made().parameters())
    for name, array in arrays:
        if mx.issubdtype(array.dtype, mx.floating):
            noise = mx.random.normal(array.shape)
            wide = array.ndim > 1
            value = noise / array.shape[-1] ** 0.5 if wide else array + 0.1 * noise
            drawn.append((name, value.astype(mx.bfloat16)))
    mx.eval(drawn)
    return made, drawn


def _config(architecture: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The configuration with other fields, which those of a wrapped text model are too."""
    configs: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
    inner = configs["inner"].get(architecture, architecture)
    own = configs["own"]
    text = {
        **configs["common"],
        "model_type": inner,
        **own.get(inner, {}),
        **own.get(architecture, {}),
        **fields,
    }
    return {**text, "model_type": architecture, "text_config": text}
