"""Small random models on disk, for tests that need a model folder and not what it says."""

from pathlib import Path

import numpy as np

from legos.builtin.files import Architecture, ModelShape, random_weights, write_model
from legos.builtin.vocabulary import TOKENS

__all__ = ["tiny_shape", "write_tiny_model"]


def tiny_shape(
    architecture: Architecture = "llama",
    *,
    hidden: int = 32,
    layers: int = 2,
    vocab: int = len(TOKENS),
) -> ModelShape:
    """Two key-value heads of 16; qwen3 has two query heads for each of them."""
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
        folder: where to; made where it does not exist.
        architecture: ``model_type`` of ``config.json``.
        hidden: width of the residual stream.
        layers: number of layers.
        vocab: rows of the embedding, at least the tokenizer's tokens.
        seed: of the weights; the same arguments give the same bytes.

    Returns:
        The folder.

    Raises:
        ModelError: a size that no loader would open.
    """
    shape = tiny_shape(architecture, hidden=hidden, layers=layers, vocab=vocab)
    write_model(folder, shape, random_weights(shape, np.random.default_rng(seed)))
    return folder
