"""Which modules of a tree LoRA adapts, and what is said where there are none."""

import pytest

from legos.errors import AdapterError
from legos.mlx.checks.small_models import small_model
from legos.mlx.model.lora import add_lora, lora_shape
from legos.weights.adapter import LoraShape


def test_modules_that_take_no_lora_are_named() -> None:
    tree = small_model("bitnet")
    with pytest.raises(
        AdapterError, match="compute with BitLinear, which takes no LoRA; take a copy"
    ):
        lora_shape(tree, rank=2, alpha=4.0, num_layers=2, head=False)


def test_no_layer_is_named() -> None:
    with pytest.raises(AdapterError, match="ask for at least one layer or the output head"):
        lora_shape(small_model("llama"), rank=2, alpha=4.0, num_layers=0, head=False)


def test_a_module_that_is_not_there_is_named() -> None:
    model = small_model("llama")
    before = [name for name, _ in model.named_modules()]
    shape = LoraShape(rank=2, scale=1.0, num_layers=1, modules=("mlp.up_proj", "mlp.other"))
    with pytest.raises(AdapterError, match=r"has no linear module mlp\.other"):
        add_lora(model, shape, seed=0)
    assert [name for name, _ in model.named_modules()] == before
