"""Models whose gradient would be wrong or missing are refused before the first step."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_backends import tree_backend

from legos.errors import ModelError, TrainerError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import small_model
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.machine import num_bytes, peak_bytes
from legos.mlx.train.gradient_check import check_gradients
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig


def shares(architecture: str, *, checkpointing: bool = False, dtype: Any = mx.float32) -> bool:
    tree = small_model(architecture, dtype=dtype)
    shape = lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False)
    add_lora(tree, shape, seed=0)
    return check_gradients(tree, CausalModel(tree), checkpointing=checkpointing)


def test_a_layer_that_passes_arrays_on_in_its_cache_is_not_checkpointed() -> None:
    tree = small_model("afm7")
    shape = lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False)
    add_lora(tree, shape, seed=0)
    config = BackendConfig(gradient_checkpointing=True)
    with pytest.raises(TrainerError, match=r"afm7: with gradient checkpointing.* 0\.6.* to false"):
        tree_backend(tree, shape, config)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_check_is_as_sharp_in_16_bits(dtype: Any) -> None:
    assert shares("gemma4_text", checkpointing=True, dtype=dtype)
    assert not shares("falcon_h1", checkpointing=True, dtype=dtype)
    with pytest.raises(TrainerError, match="afm7: with gradient checkpointing"):
        shares("afm7", checkpointing=True, dtype=dtype)


def test_grouped_heads_with_a_mask_share_prefixes() -> None:
    """As mlx-lm has it, gemma2's attention fails where rows of unlike lengths have prefixes."""
    assert shares("gemma2")


def test_models_that_cannot_be_trained_are_refused_with_the_reason() -> None:
    with pytest.raises(TrainerError, match=r"deepseek_v41 cannot be trained: .*VJP.* take a model"):
        shares("deepseek_v41")
    with pytest.raises(ModelError, match=r"gemma3n cannot be run: .*no attribute 'weight'; take"):
        shares("gemma3n")
    with pytest.raises(ModelError, match=r"qwen3_moe cannot be run: .*only supports float32"):
        shares("qwen3_moe", dtype=mx.bfloat16)


@pytest.mark.parametrize(
    ("mode", "bits", "group"), [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
)
def test_formats_with_small_floats_have_the_gradients_of_their_values(
    mode: str, bits: int, group: int
) -> None:
    form = {"group_size": group, "bits": bits, "mode": mode}
    found: list[dict[str, np.ndarray]] = []
    for packed in (True, False):
        tree: Any = small_model("llama")
        linear = [module for module in tree.modules() if isinstance(module, nn.Linear)]
        if packed:
            nn.quantize(
                tree, **form, class_predicate=lambda _, module: isinstance(module, nn.Linear)
            )
        else:
            for module in linear:
                module.weight = mx.dequantize(*mx.quantize(module.weight, **form), **form)
        tree.freeze()
        add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False), seed=0)
        step = StepSamples(samples=[make_sample(range(1, 9))], weights=[1.0])
        gradients = StepGradients(tree).of_step(step, Objective(), {}).gradients
        found.append({name: np.array(array) for name, array in gradients.items()})
    for name, array in found[0].items():
        assert found[1][name] == pytest.approx(array, rel=1e-4, abs=1e-7), name


def test_lora_on_the_head_alone_is_trained() -> None:
    tree = small_model("llama")
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=0, head=True), seed=0)
    assert check_gradients(tree, CausalModel(tree), checkpointing=True)


def test_a_trained_embedding_that_is_the_head_as_well_is_refused() -> None:
    """Its gradient as the head is not computed where the head runs in chunks."""
    tree = small_model("llama", tie_word_embeddings=True)
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=1, head=False), seed=0)
    check_gradients(tree, CausalModel(tree), checkpointing=False)
    tree["model"]["embed_tokens"].unfreeze()
    with pytest.raises(TrainerError, match=r"llama: model.embed_tokens.weight is trained, but the"):
        check_gradients(tree, CausalModel(tree), checkpointing=False)


@pytest.mark.parametrize("architecture", ["phi", "stablelm", "rwkv7"])
def test_a_trunk_that_asks_for_a_cache_is_trained(architecture: str) -> None:
    shares(architecture)


@pytest.mark.parametrize("architecture", ["qwen3_5", "mistral3", "qwen3_vl"])
def test_a_wrapped_text_model_has_a_head_of_its_own(architecture: str) -> None:
    """Its head runs in chunks of positions, and can be adapted."""
    tree = small_model(architecture)
    shape = lora_shape(tree, rank=2, alpha=4.0, num_layers=1, head=True)
    assert "language_model.lm_head" in shape.modules
    add_lora(tree, shape, seed=0)
    forward = CausalModel(tree)
    assert forward.head_module is tree["language_model"]["lm_head"]
    assert forward.trunk(mx.array([[1, 2]])).shape[-1] == 32
    assert check_gradients(tree, forward, checkpointing=False) == (architecture != "qwen3_5")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("architecture", "checkpointing"),
    [("qwen3", True), ("qwen3", False), ("llama", True), ("llama", False)],
)
def test_the_checks_need_little_memory_beside_weights_in_16_bits(
    architecture: str, checkpointing: bool
) -> None:
    """A copy of every weight in float32 would take twice as much again."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16, "head_dim": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    tree = small_model(architecture, dtype=mx.bfloat16, **sizes, **heads)
    shape = lora_shape(tree, rank=2, alpha=4.0, num_layers=16, head=False)
    add_lora(tree, shape, seed=0)
    weights = num_bytes(tree.parameters())
    assert peak_bytes(lambda: CausalModel(tree)) < 0.3 * weights
    forward = CausalModel(tree)
    peak = peak_bytes(lambda: check_gradients(tree, forward, checkpointing=checkpointing))
    assert peak < 0.3 * weights
