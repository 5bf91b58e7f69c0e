"""Every accepted setting of PEFT, checked against PEFT itself: equal log-probabilities."""

import json
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny_folders import write_tiny_model

from legos.errors import AdapterError
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.load import load_tree
from legos.weights.adapter import pack_adapter
from legos.weights.folder import read_adapter
from legos.weights.packed import unpack_adapter

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("peft") is None, reason="peft is not installed; uv pip install 'peft<0.22'"
    ),
    pytest.mark.filterwarnings("ignore"),  # PEFT's, on settings that have no effect
]

IDS = [*range(3, 15)]
TARGETS = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "alpha": {"lora_alpha": 3.7},
    "rslora": {"use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
    "eva": {"init_lora_weights": "eva"},
    "no start": {"init_lora_weights": False},
    "dropout": {"lora_dropout": 0.5},
    "some layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "all but one": {"exclude_modules": ["up_proj"]},
    "a pattern of targets": {"target_modules": r".*\.(q|k)_proj"},
    "fan in, fan out": {"fan_in_fan_out": True},
    "group of qalora": {"qalora_group_size": 4},
    "tied weights": {"ensure_weight_tying": True},
    "megatron": {"megatron_core": "another.module"},
    "no task": {"task_type": None},
    "a revision": {"revision": "main"},
    "corda's settings": {"corda_config": {}},
    "eva's settings": {"eva_config": {}},
    "lora-ga's settings": {"lora_ga_config": {}},
}
# Written by PEFT, or by hand where making them needs data or other libraries.
REFUSED: dict[str, dict[str, Any]] = {
    "init_lora_weights": {"init_lora_weights": "pissa"},
    "init_lora_weights ": {"init_lora_weights": "olora"},
    "alora_invocation_tokens": {"alora_invocation_tokens": IDS[4:6]},
    "lora_bias": {"lora_bias": True},
    "bias": {"bias": "all"},
    "rank_pattern": {"rank_pattern": {"q_proj": 2}},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 32}},
    "use_dora": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "trainable_token_indices": {"trainable_token_indices": [5]},
    "kasa_config": {"kasa_config": {}},
    "monteclora_config": {"monteclora_config": {}},
    "layer_replication": {"layer_replication": [[0, 2], [0, 2]]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def trained(base: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes an adapter with PEFT, with arrays as after a training, and writes it."""

    def make(settings: dict[str, Any], *, embeddings: Any = "auto") -> np.ndarray:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        given: dict[str, Any] = {
            "r": 4,
            "target_modules": TARGETS,
            "task_type": "CAUSAL_LM",
            **settings,
        }
        torch.manual_seed(0)
        with warnings.catch_warnings(action="ignore"):
            model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            model = get_peft_model(model, LoraConfig(**given))
            draw = torch.Generator().manual_seed(1)
            for name, array in model.named_parameters():
                if "lora_" in name:
                    array.data += 0.1 * torch.randn(array.shape, generator=draw)
            model.eval().save_pretrained(str(tmp_path), save_embedding_layers=embeddings)
            with torch.no_grad():
                logits = model(torch.tensor([IDS])).logits[0]
        return logits.log_softmax(-1).numpy()

    return make


def ours(base: Path, adapter: Any) -> np.ndarray:
    tree = load_tree(base)
    slots = AdapterSlots(tree)
    with slots.rows((slots.load(adapter),)):
        logits = tree(mx.array([IDS]))[0]
    return np.asarray(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("settings", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_accepted_setting_computes_what_peft_computes(
    base: Path, trained: Callable[..., Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    expected = trained(settings)
    adapter = read_adapter(tmp_path)
    found = ours(base, adapter)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    (tmp_path / "sent").mkdir()
    for again in (unpack_adapter(pack_adapter(adapter)), read_adapter(tmp_path)):
        assert again.digest == adapter.digest
        np.testing.assert_array_equal(ours(base, again), found)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_setting_is_named(trained: Callable[..., Any], name: str, tmp_path: Path) -> None:
    trained(REFUSED[name])
    with pytest.raises(AdapterError, match=f"sets {name.strip()} to"):
        read_adapter(tmp_path)


def test_every_setting_of_peft_is_decided(trained: Callable[..., Any], tmp_path: Path) -> None:
    """PEFT's defaults are accepted; a new default of a later version must be looked at."""
    trained({})
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert read_adapter(tmp_path).shape.rank == 4
    assert len(config) > 30


def test_an_adapted_head_is_taken_without_the_weights_of_the_base(
    base: Path, trained: Callable[..., Any], tmp_path: Path
) -> None:
    """PEFT writes the weights of an adapted head unless it is told not to."""
    settings = {"target_modules": ["q_proj", "lm_head"]}
    trained(settings)
    with pytest.raises(AdapterError, match=r"lm_head\.base_layer\.weight .*save_embedding_la"):
        read_adapter(tmp_path)
    expected = trained(settings, embeddings=False)
    found = ours(base, read_adapter(tmp_path))
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
