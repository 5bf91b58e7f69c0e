"""Layers are left out of a traced tree only where others are of the same kinds."""

from typing import Any

import mlx.core as mx
import pytest

from legos.mlx.checks.small_models import small_model
from legos.mlx.model.depth import num_repeated, without_layers


@pytest.mark.parametrize(
    ("architecture", "layers", "frozen", "expected"),
    [
        ("llama", 14, 10, 8),
        ("llama", 14, 1, 0),
        ("llama", 4, -12, 0),
        ("qwen3_moe", 14, 10, 8),
        ("gemma3_text", 20, 10, 6),  # each sixth layer reads all tokens
        ("gemma3_text", 20, 14, 12),
        ("deepseek_v2", 8, 6, 0),  # the first layer has no experts
    ],
)
def test_layers_that_repeat_a_pattern_are_counted(
    architecture: str, layers: int, frozen: int, expected: int
) -> None:
    fields: dict[str, Any] = {"sliding_window_pattern": 6} if architecture == "gemma3_text" else {}
    if architecture == "deepseek_v2":
        fields = {"first_k_dense_replace": 1}
    tree = small_model(architecture, num_hidden_layers=layers, **fields)
    assert num_repeated(tree, frozen) == expected


def test_a_tree_has_its_layers_again_after_the_block() -> None:
    tree: Any = small_model("llama", num_hidden_layers=5)
    layers, ids = list(tree.layers), mx.array([[1, 2, 3]])
    whole = tree(ids)
    with without_layers(tree, 2):
        assert list(tree.layers) == layers[2:]
        assert not mx.allclose(tree(ids), whole)
    assert list(tree.layers) == layers
    assert mx.array_equal(tree(ids), whole)
