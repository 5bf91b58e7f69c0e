"""Layers of a trainer's tree compute in chunks; no other tree and no module of mlx-lm changes."""

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gated_delta, kimi_linear, qwen3_5
from mlx_lm.models.ssm import ssm_update

from legos.mlx.checks.small_models import small_model
from legos.mlx.model.retyped import replace_calls
from legos.mlx.train.linear_attention.delta_rule import compute_in_chunks, gated_delta_rule

WITH_RULE = (
    "bailing_moe_v3", "kimi_k3", "kimi_linear", "olmo_hybrid", "qwen3_5", "qwen3_5_moe",
    "qwen3_next",
)  # fmt: skip


def changed(tree: Any) -> list[Any]:
    return [m for _, m in tree.named_modules() if type(m).__name__.endswith("_gated_delta_rule")]


@pytest.mark.parametrize("architecture", WITH_RULE)
def test_every_architecture_with_the_rule_computes_it_in_chunks(architecture: str) -> None:
    tree, other = (small_model(architecture) for _ in range(2))
    inputs = mx.array([[1, 2, 3, 4, 5]])
    tree.train()
    expected = tree(inputs)
    names = [name for name, _ in tree_flatten(tree.parameters())]
    compute_in_chunks(tree)
    assert changed(tree)
    assert not changed(other)
    assert names == [name for name, _ in tree_flatten(tree.parameters())]
    assert mx.allclose(tree(inputs), expected, rtol=1e-4, atol=1e-5).item()
    kinds = list(map(type, changed(tree)))
    compute_in_chunks(tree)
    assert list(map(type, changed(tree))) == kinds


def test_modules_of_mlx_lm_stay_as_they_are() -> None:
    compute_in_chunks(small_model("qwen3_5"))
    compute_in_chunks(small_model("kimi_linear"))
    for module in (qwen3_5, kimi_linear):
        assert module.gated_delta_update is gated_delta.gated_delta_update
    assert gated_delta.gated_delta_update is not gated_delta_rule


def test_a_tree_without_such_layers_stays_as_it_is() -> None:
    tree = small_model("llama")
    compute_in_chunks(tree)
    assert not changed(tree)


def test_any_function_is_replaced_in_every_method() -> None:
    """A method other than ``__call__`` may call it."""
    calls: list[int] = []

    def ours(*args: Any, **options: Any) -> Any:
        calls.append(len(args))
        return ssm_update(*args, **options)

    tree = small_model("falcon_h1")
    replace_calls(tree, ssm_update, ours)
    tree(mx.array([[1, 2, 3]]))
    assert calls
