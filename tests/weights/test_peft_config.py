"""Settings of strangers: each is known to leave the arithmetic as it is, or refused by name."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.errors import AdapterError
from legos.weights.adapter import MAX_RANK
from legos.weights.packed import unpack_adapter
from legos.weights.peft import from_peft
from legos.weights.peft_config import PeftConfig
from legos.weights.tensors import pack_tensors

Q = "model.layers.31.self_attn.q_proj"
PLAIN = {"r": 8, "lora_alpha": 16}


def refused(config: dict[str, Any], *named: str) -> None:
    with pytest.raises(AdapterError) as error:
        _ = PeftConfig.read({**PLAIN, **config}).scale
    for name in named:
        assert name in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.timeout(20)
def test_names_are_bounded() -> None:
    tensor = "a" * 10_000 + ".lora_A.weight"
    with pytest.raises(AdapterError, match="a name of 10014 characters; expected at most 256"):
        unpack_adapter(pack_tensors({tensor: np.ones((8, 2))}, {}), version=1, config=PLAIN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 4.5),
        ("r", "8"),
        ("r", True),
        ("r", None),
        ("r", 0),
        ("r", -1),
        ("r", MAX_RANK + 1),
        ("r", 10**400),
        ("lora_alpha", "16"),
        ("lora_alpha", True),
        ("lora_alpha", 0),
        ("lora_alpha", -16),
        ("lora_alpha", float("nan")),
        ("lora_alpha", float("inf")),
        ("use_rslora", 1),
    ],
)
def test_a_value_of_a_wrong_type_or_range_is_named(field: str, value: Any) -> None:
    refused({field: value}, field)


def test_a_scale_out_of_range_is_named() -> None:
    refused({"lora_alpha": 1e6}, "scale is 125000.0", "at most 10000")
    refused({"lora_alpha": 1e38}, "$.lora_alpha")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("init_lora_weights", "loftq"),
        ("init_lora_weights", "lora_ga"),
        ("init_lora_weights", "of a later version"),
        ("init_lora_weights", ["pissa"]),
        ("alora_invocation_tokens", [1, 2]),
        ("arrow_config", {"top_k": 2}),
        ("bias", "lora_only"),
        ("enable_lora", [True, False]),
        ("kasa_config", {"beta": 1e-4}),
        ("layer_replication", [[0, 2]]),
        ("lora_bias", True),
        ("loftq_config", {"loftq_bits": 4}),
        ("modules_to_save", ["lm_head"]),
        ("monteclora_config", {"num_samples": 8}),
        ("peft_type", "IA3"),
        ("rank_pattern", {"q_proj": 2}),
        ("alpha_pattern", {r"((\w|\.)*)*x": 2}),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("trainable_token_indices", [3]),
        ("use_bdlora", {"nblocks": 2}),
        ("use_dora", True),
        ("use_qalora", True),
        ("of_a_later_version", 1),
    ],
)
def test_what_may_change_the_arithmetic_is_refused_by_name(field: str, value: Any) -> None:
    refused({field: value}, field, str(value))
    for unset in (None, False, [], {}):
        PeftConfig.read({**PLAIN, field: unset})


def values() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    return st.recursive(
        leaves,
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
        max_leaves=6,
    )


@pytest.mark.slow
@pytest.mark.nightly
@given(
    st.dictionaries(
        st.sampled_from(
            ["r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_dora", "bias", "x"]
        ),
        values(),
    )
)
def test_no_configuration_raises_another_error(config: dict[str, Any]) -> None:
    with suppress(AdapterError):
        _ = PeftConfig.read(PLAIN | config).scale


def pair(module: str = Q, rank: int = 2, inputs: int = 5) -> dict[str, np.ndarray]:
    return {
        f"{module}.lora_A.weight": np.ones((rank, inputs), np.float32),
        f"{module}.lora_B.weight": np.ones((6, rank), np.float32),
    }


@pytest.mark.parametrize(("rank", "scale"), [(0, 1.0), (4000, 1.0), (2, -1.0), (2, 0), (2, 1e38)])
def test_ranks_and_scales_out_of_range_are_refused(rank: int, scale: float) -> None:
    ours = {
        f"{Q}.lora_a": np.ones((5, rank), np.float32),
        f"{Q}.lora_b": np.ones((rank, 6), np.float32),
    }
    for arrays in (ours, pair(rank=rank)):
        with pytest.raises(AdapterError, match=r"rank|`r`|`\$\.r`|scale"):
            unpack_adapter(pack_tensors(arrays, {}), version=1, scale=scale)


@pytest.mark.parametrize("number", ["999999", "9" * 30, "1" * 5000, "\u0661"])
def test_numbers_in_names_cost_nothing(number: str) -> None:
    """An expert's number is no size, and neither it nor a layer's is read without a limit."""
    config = {**PLAIN, "r": 2}
    layers = from_peft(pair(f"model.layers.{number}.q_proj"), config, name="x", version=1)
    assert layers.shape.num_layers <= 1
    experts = pair(f"model.layers.0.mlp.experts.{number}.up_proj")
    if number == "999999":
        with pytest.raises(AdapterError, match="no LoRA for expert 0"):
            from_peft(experts, config, name="x", version=1)
    else:  # a name as any other, which no model has
        assert from_peft(experts, config, name="x", version=1).shape.rank == 2
