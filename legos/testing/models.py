"""Small random models on disk, for tests that need a model folder and not what it says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from legos.builtin.files import (
    Architecture,
    ModelShape,
    model_config,
    random_weights,
    write_model,
)
from legos.builtin.vocabulary import BOS, END, PAD, TOKENS, token_id, write_tokenizer
from legos.errors import ModelError
from legos.testing.architectures import OtherArchitecture, Sizes, other_model, quantized

__all__ = ["write_tiny_model"]


def write_tiny_model(
    folder: Path,
    *,
    architecture: Architecture | OtherArchitecture = "llama",
    hidden: int = 32,
    layers: int = 2,
    vocab: int = len(TOKENS),
    seed: int = 0,
    bits: int | None = None,
) -> Path:
    """Write a random fp32 model with the built-in tokenizer; two key-value heads of 16.

    The qwen3 kind has two query heads for each key-value head, so grouped attention is covered.

    Args:
        folder: where to; made where it does not exist.
        architecture: ``model_type`` of ``config.json``.
        hidden: width of the residual stream.
        layers: number of layers.
        vocab: rows of the embedding, at least the tokenizer's tokens.
        seed: of the weights; the same arguments give the same bytes.
        bits: of quantised weights, for llama and qwen3; None leaves them as they are.

    Returns:
        The folder.

    Raises:
        ModelError: a size that no loader would open, or an architecture not written in bits.
    """
    rng = np.random.default_rng(seed)
    sizes = Sizes(hidden=hidden, layers=layers, vocab=vocab)
    if architecture in ("llama", "qwen3"):
        return _write_built_in(folder, architecture, sizes, rng, bits)
    if bits is not None:
        raise ModelError(f"a tiny {architecture} is not written in {bits} bits; take llama")
    return _write(folder, *other_model(architecture, sizes, rng))


def _write_built_in(
    folder: Path,
    architecture: Architecture,
    sizes: Sizes,
    rng: np.random.Generator,
    bits: int | None,
) -> Path:
    shape = ModelShape(
        architecture=architecture,
        hidden=sizes.hidden,
        layers=sizes.layers,
        heads=4 if architecture == "qwen3" else 2,
        kv_heads=2,
        head_dim=16,
        intermediate=2 * sizes.hidden,
        vocab=sizes.vocab,
        max_positions=1024,
    )
    weights = random_weights(shape, rng)
    if bits is not None:
        config, packed = quantized(weights, bits=bits, group_size=32)
        return _write(folder, model_config(shape) | config, packed)
    write_model(folder, shape, weights)
    return folder


def _write(folder: Path, config: dict[str, Any], weights: dict[str, NDArray[Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    ends = {
        "bos_token_id": token_id(BOS),
        "eos_token_id": token_id(END),
        "pad_token_id": token_id(PAD),
    }
    (folder / "config.json").write_text(json.dumps(config | ends, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(ends) + "\n")
    write_tokenizer(folder, max_tokens=config["max_position_embeddings"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder
