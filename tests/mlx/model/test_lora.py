"""Which modules of a tree LoRA adapts, and what is said where there are none."""

import pytest

from legos.errors import AdapterError
from legos.mlx.checks.small_models import small_model
from legos.mlx.model.lora import lora_shape


def test_modules_that_take_no_lora_are_named() -> None:
    tree = small_model("bitnet")
    with pytest.raises(
        AdapterError, match="compute with BitLinear, which takes no LoRA; take a copy"
    ):
        lora_shape(tree, rank=2, alpha=4.0, num_layers=2, head=False)


def test_no_layer_is_named() -> None:
    with pytest.raises(AdapterError, match="ask for at least one layer or the output head"):
        lora_shape(small_model("llama"), rank=2, alpha=4.0, num_layers=0, head=False)
