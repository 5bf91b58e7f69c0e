"""Adapters in PEFT's format: the same deltas, both ways, and refusals by name."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from legos.errors import AdapterError
from legos.weights.adapter import Adapter, LoraShape, pack_adapter, shape_of
from legos.weights.folder import read_adapter, write_adapter
from legos.weights.packed import unpack_adapter
from legos.weights.peft import from_peft, to_peft, write_peft
from legos.weights.tensors import pack_tensors, unpack_tensors
from legos.wiring.serving import base_of

Q = "model.layers.2.self_attn.q_proj"


def adapter_of(sizes: dict[str, tuple[int, ...]], *, scale: float = 2.0) -> Adapter:
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    return Adapter(name="policy", version=7, shape=shape_of(arrays, scale), arrays=arrays)


def dense(layers: range = range(2, 4), *, scale: float = 2.0) -> Adapter:
    sizes: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        for module, width in (("self_attn.q_proj", 6), ("mlp.up_proj", 10)):
            sizes[f"model.layers.{layer}.{module}.lora_a"] = (5, 3)
            sizes[f"model.layers.{layer}.{module}.lora_b"] = (3, width)
    return adapter_of(sizes, scale=scale)


def delta(adapter: Adapter, module: str) -> np.ndarray:
    """[out, in] what the adapter adds to a weight, by our own definition."""
    product = adapter.arrays[f"{module}.lora_a"] @ adapter.arrays[f"{module}.lora_b"]
    return adapter.shape.scale * product.T


def peft_delta(tensors: Any, config: Any, module: str) -> np.ndarray:
    """[out, in] what PEFT adds to a weight, by its own definition."""
    a, b = (tensors[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
    scale = config["lora_alpha"] / (
        math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
    )
    return scale * b @ a


def plain(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """One pair of rank 2 as PEFT writes it."""
    rng = np.random.default_rng(1)
    tensors = {
        f"base_model.model.{Q}.lora_A.weight": rng.standard_normal((2, 5), np.float32),
        f"base_model.model.{Q}.lora_B.weight": rng.standard_normal((6, 2), np.float32),
    }
    return tensors, {"peft_type": "LORA", "r": 2, "lora_alpha": 16, **changes}


def test_the_exported_delta_is_ours() -> None:
    adapter = dense(scale=0.5)
    tensors, config = to_peft(adapter)
    a = tensors[f"base_model.model.{Q}.lora_A.weight"]
    assert a.shape == (3, 5)
    assert a.flags.c_contiguous
    assert config["lora_alpha"] == 1.5
    np.testing.assert_allclose(peft_delta(tensors, config, Q), delta(adapter, Q), rtol=1e-6)
    assert config["target_modules"] == [
        "model.layers.2.mlp.up_proj",
        "model.layers.2.self_attn.q_proj",
        "model.layers.3.mlp.up_proj",
        "model.layers.3.self_attn.q_proj",
    ]


@pytest.mark.parametrize("rslora", [False, True])
def test_the_imported_delta_is_theirs(rslora: bool) -> None:
    tensors, config = plain(use_rslora=rslora)
    adapter = from_peft(tensors, config, name="x", version=3)
    assert adapter.shape.scale == pytest.approx(16 / math.sqrt(2) if rslora else 8)
    np.testing.assert_allclose(delta(adapter, Q), peft_delta(tensors, config, Q), rtol=1e-6)


@pytest.mark.parametrize(
    "rename",
    [
        lambda key: key.removeprefix("base_model.model."),
        lambda key: key.replace(".weight", ".default.weight"),
        lambda key: key.replace("base_model.model.model.", "base_model.model."),
    ],
    ids=["no prefix", "adapter's name inside", "model without a head"],
)
def test_other_spellings_mean_the_same(rename: Any) -> None:
    tensors, config = plain()
    expected = from_peft(tensors, config, name="x", version=3)
    renamed = {rename(key): tensor for key, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    assert from_peft(renamed, config, name="x", version=3).digest == expected.digest


def test_the_text_model_of_a_wrapped_one_has_the_names_of_transformers() -> None:
    layer = "layers.2.mlp.up_proj"
    modules = {f"language_model.model.{layer}": f"model.language_model.{layer}"}
    modules["language_model.lm_head"] = "lm_head"
    pair: dict[str, tuple[int, ...]] = {"a": (5, 3), "b": (3, 6)}
    adapter = adapter_of({f"{m}.lora_{x}": pair[x] for m in modules for x in pair})
    tensors, config = to_peft(adapter)
    assert config["target_modules"] == sorted(modules.values())
    for ours, theirs in modules.items():
        np.testing.assert_allclose(peft_delta(tensors, config, theirs), delta(adapter, ours))
    assert from_peft(tensors, config, name="policy", version=7).digest == adapter.digest


@pytest.mark.parametrize("scale", [2.0, 0.1])  # 0.1 * 3 / 3 is not 0.1
def test_a_folder_comes_back_the_same(tmp_path: Path, scale: float) -> None:
    adapter = dense(scale=scale)
    write_peft(adapter, tmp_path)
    again = read_adapter(tmp_path)
    assert again.info == adapter.info
    assert again.shape == adapter.shape
    (tmp_path / "ours").mkdir()
    write_adapter(again, tmp_path / "ours")
    assert read_adapter(tmp_path / "ours").digest == adapter.digest


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    write_peft(dense(), tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x40
    file.write_bytes(bytes(data))
    with pytest.raises(AdapterError, match="digest"):
        read_adapter(tmp_path)
    file.write_bytes(bytes(data[:-9]))
    with pytest.raises(AdapterError, match="safetensors"):
        read_adapter(tmp_path)


def test_a_folder_of_another_program_is_read(tmp_path: Path) -> None:
    tensors, config = plain()
    save_file(tensors, tmp_path / "adapter_model.safetensors", {"format": "pt"})
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    adapter = read_adapter(tmp_path)
    assert (adapter.name, adapter.version) == ("policy", 1)
    assert adapter.shape == LoraShape(
        rank=2, scale=8.0, num_layers=1, modules=("self_attn.q_proj",)
    )


def test_the_model_that_the_configuration_names_is_the_default_and_not_the_only_one() -> None:
    tensors, config = plain(base_model_name_or_path="org/Small")
    adapter = from_peft(tensors, config, name="x", version=3)
    assert adapter.base_model == "org/Small"
    assert base_of(None, [adapter]) == "org/Small"
    assert base_of("mlx-community/Small-4bit", [adapter]) == "mlx-community/Small-4bit"
    own = replace(dense(), base_model="copies/Small-4bit")  # which only that model fits
    assert base_of(None, [adapter, own]) == "copies/Small-4bit"
    for unnamed in ("", None, 3):
        tensors, config = plain(base_model_name_or_path=unnamed)
        assert from_peft(tensors, config, name="x", version=3).base_model is None


@given(st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_experts_are_exported_one_by_one_and_stacked_again(
    experts: int, rank: int, mixtral: bool
) -> None:
    block = "model.layers.3." + ("block_sparse_moe" if mixtral else "mlp")
    name = f"{block}.switch_mlp.up_proj"
    adapter = adapter_of(
        {f"{name}.lora_a": (experts, rank, 5), f"{name}.lora_b": (experts, 6, rank)}
    )
    assert adapter.shape.rank == rank
    tensors, config = to_peft(adapter)
    last = f"{block}.experts.{experts - 1}.{'w3' if mixtral else 'up_proj'}"
    np.testing.assert_allclose(
        peft_delta(tensors, config, last),
        2.0 * adapter.arrays[f"{name}.lora_b"][-1] @ adapter.arrays[f"{name}.lora_a"][-1],
        rtol=1e-5,
        atol=1e-6,
    )
    again = from_peft(tensors, config, name="policy", version=7)
    assert again.info == adapter.info


def test_a_scale_that_is_given_replaces_that_of_the_configuration() -> None:
    tensors, config = to_peft(dense())
    found = unpack_adapter(pack_tensors(tensors, {}), version=1, config=config, scale=3.0)
    assert found.shape.scale == 3.0


def test_a_scale_that_is_given_replaces_the_recorded_one() -> None:
    adapter = dense()
    found = unpack_adapter(pack_adapter(adapter), scale=4.0)
    assert found.info == replace(adapter, shape=replace(adapter.shape, scale=4.0)).info
    tensors, config = to_peft(adapter)
    peft = pack_tensors(tensors, adapter.header)
    for stated in (None, config):
        assert unpack_adapter(peft, config=stated, scale=4.0).info == found.info
    damaged = bytearray(pack_adapter(adapter))
    damaged[-1] ^= 0x40
    with pytest.raises(AdapterError, match="the file is damaged"):
        unpack_adapter(damaged, scale=4.0)


def refused(tensors: Any, config: Any, named: str) -> None:
    with pytest.raises(AdapterError, match=named):
        from_peft(tensors, config, name="x", version=0)


def test_what_is_no_plain_lora_is_refused_by_name() -> None:
    tensors, config = plain()
    a, b = tensors
    refused({a: tensors[a]}, config, r"q_proj\.lora_B\.weight is missing")
    refused({a: tensors[a].T.copy(), b: tensors[b]}, config, r"lora_A.*\(5, 2\).*transpose")
    refused({a: tensors[a], b: tensors[b].T.copy()}, config, r"lora_B.*\(2, 6\).*transpose")
    refused(tensors, {**config, "r": 4}, r"lora_A.*\(2, 5\).*r = 4$")
    refused({**tensors, f"{Q}.lora_magnitude_vector": np.ones(6)}, config, "vector is no LoRA")
    refused({**tensors, f"{Q}.lora_a": b}, config, r"q_proj\.lora_a is no LoRA matrix")
    refused(
        {**tensors, "model.embed_tokens.lora_embedding_A": b}, config, "embed_tokens.lora_embed"
    )
    fused = "base_model.model.model.layers.1.mlp.experts.base_layer.lora_A.weight"
    refused({**tensors, fused: tensors[a]}, config, "all experts fused")
    lone = {key.replace("q_proj", "experts.1.q_proj"): value for key, value in tensors.items()}
    refused(lone, config, "no LoRA for expert 0")
    wide = {
        key: np.zeros(np.add(array.shape, letter), np.float32)
        for (key, array), letter in zip(lone.items(), ((0, 1), (0, 0)), strict=True)
    }
    narrow = {key.replace("experts.1", "experts.0"): value for key, value in lone.items()}
    refused(wide | narrow, config, r"lora_. of expert 1 has shape .*expert 0")
    bare = a.removeprefix("base_model.model.")
    refused({**tensors, bare: tensors[a]}, config, "lora_A of .* a second time")
    again = {key.replace("experts.1", "experts.01"): value for key, value in lone.items()}
    refused(lone | again, config, "expert 1 a second time")
    refused({}, config, "no tensor")
    for changes in (
        {"peft_type": "IA3"},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"r": 0},
        {"lora_alpha": None},
    ):
        refused(tensors, {**config, **changes}, next(iter(changes)))


def test_an_array_without_a_place_in_peft_is_refused() -> None:
    name = "model.layers.0.mlp.shared.gate"
    odd = adapter_of({f"{name}.lora_a": (2, 3, 5), f"{name}.lora_b": (2, 6, 3)})
    with pytest.raises(AdapterError, match=r"shared\.gate"):
        to_peft(odd)


def test_bytes_come_back_the_same() -> None:
    adapter = dense()
    again = unpack_adapter(pack_adapter(adapter))
    assert again.info == adapter.info
    assert again.shape == adapter.shape
    renamed = unpack_adapter(pack_adapter(adapter), name="rival", version=9)
    assert (renamed.name, renamed.version) == ("rival", 9)


def test_bytes_that_do_not_say_enough_are_refused() -> None:
    data = pack_tensors(dense().arrays, {})
    with pytest.raises(AdapterError, match="version is None"):
        unpack_adapter(data, scale=4.0)
    with pytest.raises(AdapterError, match="states the scale; give it"):
        unpack_adapter(data, version=1)
    assert unpack_adapter(data, version=1, scale=4.0).name == "policy"
    assert unpack_adapter(data, name="p", version=1, scale=4.0).shape.scale == 4.0
    damaged = bytearray(pack_adapter(dense()))
    damaged[-1] ^= 0x40
    with pytest.raises(AdapterError, match="digest"):
        unpack_adapter(bytes(damaged))


def test_a_folder_of_another_kind_of_training_is_refused(tmp_path: Path) -> None:
    write_adapter(dense(), tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(file.read_text().replace('"lora"', '"full"'))
    with pytest.raises(AdapterError, match="fine_tune_type is 'full'; expected 'lora'"):
        read_adapter(tmp_path)


def test_half_precision_is_widened_exactly() -> None:
    numbers = np.array([[1.5, -0.25], [3.0, 1024.0]], np.float32)
    raw = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    spec = safetensors.TensorSpec(
        dtype="bfloat16", shape=(2, 2), data_ptr=raw.ctypes.data, data_len=raw.nbytes
    )
    arrays, _ = unpack_tensors(safetensors.serialize({"x": spec}, None))
    np.testing.assert_array_equal(arrays["x"], numbers)
    with pytest.raises(AdapterError, match="tensor x has type I64"):
        unpack_tensors(save({"x": np.zeros(3, np.int64)}))


def test_shapes_are_read_off_the_arrays() -> None:
    assert dense().shape == LoraShape(
        rank=3, scale=2.0, num_layers=2, modules=("mlp.up_proj", "self_attn.q_proj")
    )
    with pytest.raises(AdapterError, match="several ranks"):
        adapter_of({f"{Q}.lora_a": (5, 3), f"{Q}.lora_b": (2, 6)})
    with pytest.raises(AdapterError, match=r"expected <module>\.lora_a"):
        adapter_of({f"{Q}.weight": (5, 3)})
    with pytest.raises(AdapterError, match=r"names in \.m, must be merged"):
        adapter_of({f"{Q}.m": (5,)})


def test_both_formats_keep_what_chats_asked_of_thinking(tmp_path: Path) -> None:
    adapter = replace(dense(), thinking="off")
    assert unpack_adapter(pack_adapter(adapter)).thinking == "off"
    write_peft(adapter, tmp_path)
    assert read_adapter(tmp_path).thinking == "off"
