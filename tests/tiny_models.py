"""Tiny models of other architectures than the built-in one, and quantised ones.

One per way in which serving can differ: biases and a tied head (qwen2), experts (qwen3_moe), caches
that wrap around (gemma3_text), state-space, convolution and linear-attention layers beside
attention (falcon_h1, lfm2, qwen3_5), and quantised weights (llama, in 4 bits).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from model_files import model_config, random_weights, write_tokenizer
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tiny_folders import tiny_shape, write_tiny_model
from vocabulary import BOS, END, PAD, TOKENS, token_id

__all__ = ["write_any_model"]

OtherArchitecture = Literal["qwen2", "qwen3_moe", "gemma3_text", "falcon_h1", "lfm2", "qwen3_5"]
Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
Weights = dict[str, NDArray[Any]]

SLIDING_WINDOW = 8  # tokens that gemma3_text's sliding layers attend to
EXPERTS = 8  # of qwen3_moe; two for each token
HEADS = 2
HEAD_DIM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all architectures have; two heads of 16, and twice the width inside the MLP."""

    hidden: int
    layers: int
    vocab: int


def other_model(
    architecture: OtherArchitecture, sizes: Sizes, rng: np.random.Generator
) -> tuple[Config, Weights]:
    """What ``config.json`` says, and random fp32 weights by the names a loader reads."""
    own, shapes = _ARCHITECTURES[architecture](sizes)
    config = _shared_config(architecture, sizes) | own
    embedding = math.sqrt(sizes.hidden) if config["tie_word_embeddings"] else 1.0
    norm = (
        0.0 if architecture == "gemma3_text" else 1.0
    )  # gemma multiplies by one more than it stores

    def draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        noise = rng.standard_normal(shape)
        if name.endswith("A_log"):
            return np.log(np.arange(1.0, shape[0] + 1)).astype(np.float32)
        if len(shape) == 1:
            return (0.1 * noise + (0.0 if name.endswith("bias") else norm)).astype(np.float32)
        inputs = embedding if "embed_tokens" in name else math.sqrt(math.prod(shape[1:]))
        return (noise / inputs).astype(np.float32)

    return config, {name: draw(name, shape) for name, shape in shapes.items()}


def quantized(
    weights: Mapping[str, NDArray[Any]], *, bits: int, group_size: int
) -> tuple[Config, Weights]:
    """Weights with every matrix in mlx's affine form, and what ``config.json`` says of it.

    A group of values w becomes integers q with w = scale * q + bias, packed into 32-bit words from
    the lowest bits up.
    """
    packed: dict[str, NDArray[Any]] = {}
    for name, array in weights.items():
        if array.ndim != 2:
            packed[name] = array
            continue
        groups = array.reshape(len(array), -1, group_size)
        low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
        scale = (high - low) / (2**bits - 1)
        values: NDArray[np.uint32] = np.rint((groups - low) / scale).astype(np.uint32)
        places = np.arange(0, 32, bits, dtype=np.uint32)
        words = values.reshape(len(array), -1, len(places)) << places
        module = name.removesuffix(".weight")
        packed[name] = np.bitwise_or.reduce(words, axis=-1)
        packed[f"{module}.scales"] = scale[..., 0].astype(np.float32)
        packed[f"{module}.biases"] = low[..., 0].astype(np.float32)
    return {"quantization": {"group_size": group_size, "bits": bits}}, packed


def _shared_config(architecture: str, sizes: Sizes) -> Config:
    return {
        "model_type": architecture,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": 2 * sizes.hidden,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def _attention(layer: str, hidden: int, *, out: str = "o_proj") -> Shapes:
    width = HEADS * HEAD_DIM
    names = {"q_proj": (width, hidden), "k_proj": (width, hidden), "v_proj": (width, hidden)}
    shapes = {**names, out: (hidden, width)}
    return {f"{layer}.self_attn.{name}.weight": shape for name, shape in shapes.items()}


def _mlp(block: str, hidden: int, width: int, names: tuple[str, str, str]) -> Shapes:
    gate, up, down = (f"{block}.{name}.weight" for name in names)
    return {gate: (width, hidden), up: (width, hidden), down: (hidden, width)}


def _norms(layer: str, hidden: int, *names: str) -> Shapes:
    return {f"{layer}.{name}.weight": (hidden,) for name in names}


def _head_norms(layer: str, *names: str) -> Shapes:
    return {f"{layer}.self_attn.{name}.weight": (HEAD_DIM,) for name in names}


def _ends(sizes: Sizes, *, norm: str, tied: bool) -> Shapes:
    embedding = {"model.embed_tokens.weight": (sizes.vocab, sizes.hidden)}
    head = {} if tied else {"lm_head.weight": (sizes.vocab, sizes.hidden)}
    return {**embedding, f"model.{norm}.weight": (sizes.hidden,), **head}


GATED = ("gate_proj", "up_proj", "down_proj")
AROUND = ("input_layernorm", "post_attention_layernorm")


def _qwen2(sizes: Sizes) -> tuple[Config, Shapes]:
    hidden = sizes.hidden
    if hidden != HEADS * HEAD_DIM:
        raise ValueError(f"qwen2 is {HEADS * HEAD_DIM} wide here; hidden is {hidden}")
    shapes = _ends(sizes, norm="norm", tied=True)
    for index in range(sizes.layers):
        layer = f"model.layers.{index}"
        shapes |= _attention(layer, hidden) | _norms(layer, hidden, *AROUND)
        shapes |= {f"{layer}.self_attn.{name}_proj.bias": (hidden,) for name in "qkv"}
        shapes |= _mlp(f"{layer}.mlp", hidden, 2 * hidden, GATED)
    return {"tie_word_embeddings": True}, shapes


def _qwen3_moe(sizes: Sizes) -> tuple[Config, Shapes]:
    hidden = sizes.hidden
    shapes = _ends(sizes, norm="norm", tied=False)
    for index in range(sizes.layers):
        layer = f"model.layers.{index}"
        shapes |= _attention(layer, hidden) | _norms(layer, hidden, *AROUND)
        shapes |= _head_norms(layer, "q_norm", "k_norm")
        shapes[f"{layer}.mlp.gate.weight"] = (EXPERTS, hidden)
        for expert in range(EXPERTS):
            shapes |= _mlp(f"{layer}.mlp.experts.{expert}", hidden, hidden, GATED)
    config: Config = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": hidden,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }
    return config, shapes


def _gemma3_text(sizes: Sizes) -> tuple[Config, Shapes]:
    hidden = sizes.hidden
    shapes = _ends(sizes, norm="norm", tied=True)
    for index in range(sizes.layers):
        layer = f"model.layers.{index}"
        norms = (*AROUND, "pre_feedforward_layernorm", "post_feedforward_layernorm")
        shapes |= _attention(layer, hidden) | _norms(layer, hidden, *norms)
        shapes |= _head_norms(layer, "q_norm", "k_norm")
        shapes |= _mlp(f"{layer}.mlp", hidden, 2 * hidden, GATED)
    config = {
        "query_pre_attn_scalar": HEAD_DIM,
        "sliding_window": SLIDING_WINDOW,
        "sliding_window_pattern": 2,  # every second layer attends to everything
        "tie_word_embeddings": True,
    }
    return config, shapes


def _falcon_h1(sizes: Sizes) -> tuple[Config, Shapes]:
    hidden, heads, state = sizes.hidden, 4, 16
    width = heads * HEAD_DIM
    convolved = width + 2 * state
    shapes = _ends(sizes, norm="final_layernorm", tied=False)
    for index in range(sizes.layers):
        layer = f"model.layers.{index}"
        shapes |= _attention(layer, hidden)
        shapes |= _norms(layer, hidden, "input_layernorm", "pre_ff_layernorm")
        shapes |= _mlp(f"{layer}.feed_forward", hidden, 2 * hidden, GATED)
        mamba = {
            "conv1d.weight": (convolved, 4, 1),
            "conv1d.bias": (convolved,),
            "in_proj.weight": (width + convolved + heads, hidden),
            "dt_bias": (heads,),
            "A_log": (heads,),
            "D": (heads,),
            "norm.weight": (width,),
            "out_proj.weight": (hidden, width),
        }
        shapes |= {f"{layer}.mamba.{name}": shape for name, shape in mamba.items()}
    config = {
        "mamba_d_conv": 4,
        "mamba_d_head": HEAD_DIM,
        "mamba_d_ssm": width,
        "mamba_d_state": state,
        "mamba_n_groups": 1,
        "mamba_n_heads": heads,
        "mamba_rms_norm": True,
    }
    return config, shapes


def _lfm2(sizes: Sizes) -> tuple[Config, Shapes]:
    hidden = sizes.hidden
    shapes = _ends(sizes, norm="embedding_norm", tied=True)
    for index in range(sizes.layers):
        layer = f"model.layers.{index}"
        shapes |= _norms(layer, hidden, "operator_norm", "ffn_norm")
        shapes |= _mlp(f"{layer}.feed_forward", hidden, 2 * hidden, ("w1", "w3", "w2"))
        if index % 2:
            shapes |= _attention(layer, hidden, out="out_proj")
            shapes |= _head_norms(layer, "q_layernorm", "k_layernorm")
        else:
            shapes[f"{layer}.conv.conv.weight"] = (hidden, 3, 1)
            shapes[f"{layer}.conv.in_proj.weight"] = (3 * hidden, hidden)
            shapes[f"{layer}.conv.out_proj.weight"] = (hidden, hidden)
    config = {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": hidden,
        "block_ff_dim": 2 * hidden,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": list(range(1, sizes.layers, 2)),
        "tie_word_embeddings": True,
    }
    return config, shapes


def _qwen3_5(sizes: Sizes) -> tuple[Config, Shapes]:
    hidden, keys, values, size = sizes.hidden, 2, 4, 8
    convolved = 2 * keys * size + values * size
    shapes = _ends(sizes, norm="norm", tied=False)
    for index in range(sizes.layers):
        layer = f"model.layers.{index}"
        shapes |= _norms(layer, hidden, *AROUND) | _mlp(f"{layer}.mlp", hidden, 2 * hidden, GATED)
        if index % 2:
            shapes |= _attention(layer, hidden) | _head_norms(layer, "q_norm", "k_norm")
            shapes[f"{layer}.self_attn.q_proj.weight"] = (2 * HEADS * HEAD_DIM, hidden)
            continue
        linear = {
            "conv1d.weight": (convolved, 4, 1),
            "in_proj_qkv.weight": (convolved, hidden),
            "in_proj_z.weight": (values * size, hidden),
            "in_proj_b.weight": (values, hidden),
            "in_proj_a.weight": (values, hidden),
            "dt_bias": (values,),
            "A_log": (values,),
            "norm.weight": (size,),
            "out_proj.weight": (hidden, values * size),
        }
        shapes |= {f"{layer}.linear_attn.{name}": shape for name, shape in linear.items()}
    config = {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "rope_parameters": {
            "type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
    }
    return config, shapes


_ARCHITECTURES: Mapping[OtherArchitecture, Callable[[Sizes], tuple[Config, Shapes]]] = {
    "qwen2": _qwen2,
    "qwen3_moe": _qwen3_moe,
    "gemma3_text": _gemma3_text,
    "falcon_h1": _falcon_h1,
    "lfm2": _lfm2,
    "qwen3_5": _qwen3_5,
}


def write_any_model(
    folder: Path,
    *,
    architecture: Literal["llama", "qwen3"] | OtherArchitecture = "llama",
    hidden: int = 32,
    layers: int = 2,
    vocab: int = len(TOKENS),
    seed: int = 0,
    bits: int | None = None,
) -> Path:
    """``write_tiny_model`` for every architecture, and in so many bits for llama and qwen3."""
    rng, sizes = np.random.default_rng(seed), Sizes(hidden=hidden, layers=layers, vocab=vocab)
    if architecture not in ("llama", "qwen3"):
        assert bits is None, "the arrays of other architectures are not quantised here"
        return _write(folder, *other_model(architecture, sizes, rng))
    own: Any = {"hidden": hidden, "layers": layers, "vocab": vocab, "architecture": architecture}
    if bits is None:
        return write_tiny_model(folder, seed=seed, **own)
    shape = tiny_shape(**own)
    config, packed = quantized(random_weights(shape, rng), bits=bits, group_size=32)
    return _write(folder, model_config(shape) | config, packed)


def _write(folder: Path, config: dict[str, Any], weights: dict[str, NDArray[Any]]) -> Path:
    write_tokenizer(folder, max_tokens=config["max_position_embeddings"])
    ends = {
        "bos_token_id": token_id(BOS),
        "eos_token_id": token_id(END),
        "pad_token_id": token_id(PAD),
    }
    (folder / "config.json").write_text(json.dumps(config | ends, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder
