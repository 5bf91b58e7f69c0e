"""Write a model like the built-in one: its tokenizer and configuration, with sizes of one's own."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save
from vocabulary import TOKENS

from legos.builtin import builtin_path

__all__ = [
    "Architecture",
    "ModelShape",
    "Weights",
    "model_config",
    "random_weights",
    "weight_shapes",
    "write_model",
    "write_tokenizer",
]

Architecture = Literal["llama", "qwen3"]
Weights = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only model with rotary positions, SwiGLU and an untied output head."""

    architecture: Architecture = "llama"
    hidden: int = 64  # width of the residual stream
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2  # heads % kv_heads == 0
    head_dim: int = 32
    intermediate: int = 192  # width of the SwiGLU
    vocab: int = len(TOKENS)  # rows of the embedding; at least the tokenizer's tokens
    max_positions: int = 2048


def write_model(folder: Path, shape: ModelShape, weights: Weights) -> None:
    """Write a model folder; the same arguments give the same bytes.

    Args:
        folder: created if it does not exist; existing files are replaced.
        shape: sizes of the model.
        weights: the arrays of ``weight_shapes``, written as fp32.
    """
    write_tokenizer(folder, max_tokens=shape.max_positions)
    _write_json(folder / "config.json", model_config(shape))
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in weights.items()}
    (folder / "model.safetensors").write_bytes(save(arrays, metadata={"format": "pt"}))


def write_tokenizer(folder: Path, *, max_tokens: int) -> None:
    """Write the built-in tokenizer and the ids that end an answer.

    Args:
        folder: created if it does not exist.
        max_tokens: longest sequence that the model accepts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "special_tokens_map.json", "generation_config.json"):
        if folder != builtin_path():
            shutil.copyfile(builtin_path() / name, folder / name)
    _write_json(
        folder / "tokenizer_config.json",
        _builtin("tokenizer_config.json") | {"model_max_length": max_tokens},
    )


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array under its hub name, in the order of the forward pass."""
    hidden, width = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (width, hidden),
        "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }
    if shape.architecture == "qwen3":
        layer |= {f"self_attn.{name}_norm": (shape.head_dim,) for name in "qk"}
    return {
        "model.embed_tokens.weight": (shape.vocab, hidden),
        **{
            f"model.layers.{index}.{name}.weight": size
            for index in range(shape.layers)
            for name, size in layer.items()
        },
        "model.norm.weight": (hidden,),
        "lm_head.weight": (shape.vocab, hidden),
    }


def random_weights(shape: ModelShape, rng: np.random.Generator) -> Weights:
    """Random weights: norms are 1, matrices are normal with deviation ``1 / sqrt(inputs)``."""

    def draw(name: str, size: tuple[int, ...]) -> npt.NDArray[np.float32]:
        if len(size) == 1:
            return np.ones(size, np.float32)
        deviation = 1.0 if name.startswith("model.embed") else 1.0 / math.sqrt(size[1])
        return (rng.standard_normal(size) * deviation).astype(np.float32)

    return {name: draw(name, size) for name, size in weight_shapes(shape).items()}


def model_config(shape: ModelShape) -> dict[str, Any]:
    """The contents of ``config.json``."""
    return _builtin("config.json") | {
        "architectures": [f"{shape.architecture.capitalize()}ForCausalLM"],
        "model_type": shape.architecture,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
    }


def _builtin(name: str) -> dict[str, Any]:
    return json.loads((builtin_path() / name).read_text(encoding="utf-8"))


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
