"""Small random models on disk, for tests that need a model folder but not a trained model."""

import json
import shutil
from pathlib import Path

import numpy as np
from model_files import Architecture, ModelShape, random_weights, write_model
from vocabulary import TOKENS

from legos.builtin import builtin_path

__all__ = ["THINKING", "builtin_with_template", "tiny_shape", "write_tiny_model"]

THINKING = "{% if enable_thinking is false %}{{ 'no ' }}{% endif %}"
"""An end of chat templates, which ask a model for an answer without thinking."""


def tiny_shape(
    architecture: Architecture = "llama",
    *,
    hidden: int = 32,
    layers: int = 2,
    vocab: int = len(TOKENS),
) -> ModelShape:
    """A shape with two key-value heads of size 16; qwen3 has two query heads for each of them."""
    return ModelShape(
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        heads=4 if architecture == "qwen3" else 2,
        kv_heads=2,
        head_dim=16,
        intermediate=2 * hidden,
        vocab=vocab,
        max_positions=1024,
    )


def write_tiny_model(
    folder: Path,
    *,
    architecture: Architecture = "llama",
    hidden: int = 32,
    layers: int = 2,
    vocab: int = len(TOKENS),
    seed: int = 0,
) -> Path:
    """Write a random fp32 model with the built-in tokenizer.

    Args:
        folder: folder to write to; created if it does not exist.
        architecture: ``model_type`` of ``config.json``.
        hidden: width of the residual stream.
        layers: number of layers.
        vocab: rows of the embedding, at least the tokenizer's tokens.
        seed: seed of the weights; the same arguments give the same bytes.

    Returns:
        The folder.

    Raises:
        ModelError: no loader could open a model of these sizes.
    """
    shape = tiny_shape(architecture, hidden=hidden, layers=layers, vocab=vocab)
    write_model(folder, shape, random_weights(shape, np.random.default_rng(seed)))
    return folder


def builtin_with_template(folder: Path, template: str | None, *, after: str = "") -> Path:
    """A copy of the built-in model in a new folder, with another chat template.

    Args:
        folder: the new folder.
        template: the template; None: none.
        after: in place of another template, what its own ends with.
    """
    shutil.copytree(builtin_path(), folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"] = config["chat_template"] + after if after else template
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder
