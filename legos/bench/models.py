"""Models with random fp32 weights, for benches: the built-in model in other sizes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import (
    load_file,
    save_file,
)

from legos.builtin import builtin_path

HEAD = 64  # width of an attention head
MODELS = {"5m": (256, 6, 704, 358), "40m": (448, 5, 1216, 32768)}
"""Name -> hidden size, layers, width of the SwiGLU, vocabulary; the name is the approximate number
of parameters."""


def write_bench_model(name: str, folder: Path) -> Path:
    """Write a bench model; its tokenizer gets as many tokens as the model has rows.

    Its greedy answers are plain text that never ends, because the logits of all other tokens are 0,
    and the largest of so many random ones is not. So they have the same length and cost everywhere.

    Args:
        name: one of ``MODELS``.
        folder: created if it does not exist.

    Returns:
        The folder.
    """
    shutil.copytree(builtin_path(), folder, dirs_exist_ok=True)
    hidden, layers, width, vocabulary = MODELS[name]
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    sizes = {
        config["hidden_size"]: hidden,
        config["intermediate_size"]: width,
        config["vocab_size"]: vocabulary,
    }
    heads = hidden // HEAD
    config |= {"hidden_size": hidden, "intermediate_size": width, "num_hidden_layers": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": HEAD}
    config |= {"vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    for key, array in load_file(folder / "model.safetensors").items():
        if ".layers.1." in key:
            continue  # its shapes are those of layer 0
        shape = tuple(sizes[size] for size in array.shape)
        scale = np.float32(1.0 if "embed" in key else shape[-1] ** -0.5)
        for layer in range(layers) if ".layers.0." in key else (0,):
            drawn = rng.standard_normal(shape, np.float32) * scale
            whole = key.replace(".layers.0.", f".layers.{layer}.")
            weights[whole] = drawn if len(shape) > 1 else np.ones(shape, np.float32)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words: dict[str, int] = tokenizer["model"]["vocab"]
    plain = [token for word, token in words.items() if len(word) == 1]
    weights["lm_head.weight"][: min(plain)] = 0.0
    weights["lm_head.weight"][max(plain) + 1 : len(words)] = 0.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    words |= {f" word{index}": index for index in range(len(words), vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
