"""TF32, which rounds float32 products to a thousandth, is off unless the user asks for it."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

import legos.mlx
from legos.mlx.generate.capabilities import probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import load_tree
from legos.mlx.model.machine import device_facts


@pytest.mark.parametrize(("given", "used"), [(None, "0"), ("0", "0"), ("1", "1")])
def test_it_is_off_by_default_and_reported(
    given: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", given or "")
    if given is None:
        monkeypatch.delenv("MLX_ENABLE_TF32")
    importlib.reload(legos.mlx)
    assert os.environ["MLX_ENABLE_TF32"] == used
    assert device_facts()["tf32"] is (used == "1")


def rounded(array: mx.array) -> mx.array:
    """Float32 with the 10 bits of mantissa that TF32 keeps."""
    bits = (array.view(mx.uint32) + 0x1000) & 0xFFFFE000
    return bits.view(mx.float32)


def test_the_checks_at_load_allow_its_rounding(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = load_tree(tiny_models["qwen3"])
    ids = mx.array([[3, 1, 4, 1, 5]])
    expected = exact(ids)

    def product(module: nn.Linear, x: mx.array) -> mx.array:
        return rounded(x) @ rounded(module.weight).T

    monkeypatch.setattr(nn.Linear, "__call__", product)
    assert not mx.allclose(exact(ids), expected, rtol=1e-5, atol=1e-5).item()
    tree = load_tree(tiny_models["qwen3"])
    probe(CausalModel(tree), AdapterSlots(tree))
