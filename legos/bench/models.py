"""Models with random fp32 weights, for benches."""

import json
from pathlib import Path

import numpy as np

from legos.builtin.files import ModelShape, random_weights, write_model
from legos.builtin.vocabulary import CHARACTERS, TOKENS, token_id

__all__ = ["MODELS", "write_bench_model"]

MODELS = {
    "5m": ModelShape(
        hidden=256, layers=6, heads=4, kv_heads=4, head_dim=64, intermediate=704, vocab=358
    ),
    "40m": ModelShape(
        hidden=448, layers=5, heads=7, kv_heads=7, head_dim=64, intermediate=1216, vocab=32768
    ),
}
"""Name -> shape; the name is the approximate number of parameters."""


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
    shape = MODELS[name]
    weights = dict(random_weights(shape, np.random.default_rng(0)))
    plain = [token_id(character) for character in CHARACTERS]
    weights["lm_head.weight"][: min(plain)] = 0.0
    weights["lm_head.weight"][max(plain) + 1 : len(TOKENS)] = 0.0
    write_model(folder, shape, weights)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for index in range(len(vocabulary), shape.vocab):
        vocabulary[f" word{index}"] = index
    file.write_text(json.dumps(tokenizer))
    return folder
