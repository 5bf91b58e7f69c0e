"""A policy's state on disk is the same for every device, and of nothing else than that policy."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from legos.errors import AdapterError
from legos.weights.policy_state import PolicyState, read_policy_state, write_policy_state

Q = "model.layers.0.self_attn.q_proj"
SHAPES = {f"{Q}.lora_a": (3, 2), f"{Q}.lora_b": (2, 5)}


def make_state() -> PolicyState:
    rng = np.random.default_rng(0)

    def arrays(*ends: str) -> dict[str, np.ndarray]:
        return {
            f"{name}{end}": rng.standard_normal(shape).astype(np.float32)
            for name, shape in SHAPES.items()
            for end in ends
        }

    return PolicyState(
        name="policy",
        version=7,
        updates=5,
        adapter=arrays(""),
        ema=arrays(""),
        moments=arrays(".m", ".v"),
    )


def test_what_was_written_is_read_to_the_bit(tmp_path: Path) -> None:
    state = make_state()
    write_policy_state(state, tmp_path)
    found = read_policy_state(tmp_path, "policy", SHAPES)
    assert (found.version, found.updates) == (7, 5)
    for name in ("adapter", "ema", "moments"):
        expected = getattr(state, name)
        assert getattr(found, name).keys() == expected.keys()
        for key, array in getattr(found, name).items():
            np.testing.assert_array_equal(array, expected[key])


def test_moments_are_named_by_module(tmp_path: Path) -> None:
    write_policy_state(make_state(), tmp_path)
    names = set(load_file(tmp_path / "optimiser.safetensors"))
    assert names == {f"{Q}.{array}.{m}" for array in ("lora_a", "lora_b") for m in ("m", "v")}


def test_arrays_of_another_model_or_optimiser_are_named(tmp_path: Path) -> None:
    write_policy_state(make_state(), tmp_path)
    told = f"adapter 'v7': {Q}.lora_b has shape (2, 5), expected (2, 6)"
    with pytest.raises(AdapterError, match=re.escape(told)):
        read_policy_state(tmp_path, "policy", SHAPES | {f"{Q}.lora_b": (2, 6)})
    with pytest.raises(AdapterError, match=r"'v7' holds .*lora_b, where this model has no LoRA"):
        read_policy_state(tmp_path, "policy", {f"{Q}.lora_a": (3, 2)})
    state = make_state()
    whole = dict(state.moments)
    for change, told in (
        (
            {f"{Q}.lora_a.v": np.zeros((1, 2), np.float32)},
            r"'optimiser': .* shape \(1, 2\), expected \(3, 2\); it needs this model",
        ),
        ({"more.m": np.zeros(1, np.float32)}, r"'optimiser' holds more\.m"),
    ):
        write_policy_state(replace(state, moments=whole | change), tmp_path)
        with pytest.raises(AdapterError, match=told):
            read_policy_state(tmp_path, "policy", SHAPES)
