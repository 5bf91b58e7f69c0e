"""A model folder holds what a loader looks for, and the same arguments give the same bytes."""

import json
from pathlib import Path

import numpy as np
from model_files import ModelShape, random_weights, weight_shapes, write_model
from safetensors.numpy import load_file
from tiny_folders import write_tiny_model
from tokenizers import Tokenizer
from vocabulary import SPECIALS, TOKENS

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first = contents(write_tiny_model(tmp_path / "a"))
    assert set(first) == FILES
    assert first == contents(write_tiny_model(tmp_path / "b"))
    other = contents(write_tiny_model(tmp_path / "c", seed=1))
    assert {name for name in FILES if other[name] != first[name]} == {"model.safetensors"}


def test_both_keys_of_the_rotary_base_are_written(tmp_path: Path) -> None:
    config = json.loads((write_tiny_model(tmp_path) / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["tie_word_embeddings"] is False
    assert config["head_dim"] == 16


def test_the_tokenizer_file_is_as_its_library_writes_it(tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path) / "tokenizer.json"
    assert json.loads(Tokenizer.from_file(str(file)).to_str()) == json.loads(file.read_text())


def test_weights_are_stored_as_given(tmp_path: Path) -> None:
    shape = ModelShape(architecture="qwen3", kv_heads=1, vocab=400)
    weights = random_weights(shape, np.random.default_rng(3))
    write_model(tmp_path, shape, weights)
    stored = load_file(tmp_path / "model.safetensors")
    assert {name: array.shape for name, array in stored.items()} == weight_shapes(shape)
    for name, array in weights.items():
        np.testing.assert_array_equal(stored[name], array)
    assert stored["model.layers.1.self_attn.k_proj.weight"].shape == (32, 64)
    assert stored["model.layers.0.self_attn.q_norm.weight"].shape == (32,)


def test_the_committed_tokenizer_has_the_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = json.loads((write_tiny_model(tmp_path) / "tokenizer.json").read_text())
    assert [*tokenizer["model"]["vocab"].items()] == [(t, n) for n, t in enumerate(TOKENS)]
    assert [added["content"] for added in tokenizer["added_tokens"]] == [*SPECIALS]
