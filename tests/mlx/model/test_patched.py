"""Modules of mlx-lm that are wrong in a batch: as they are, and as the kit loads them."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model, save_model

from legos.errors import ModelError
from legos.mlx.checks.small_models import small_model
from legos.mlx.generate.capabilities import probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import load_tree


def served(model: nn.Module) -> None:
    """Compare rows in batches with rows alone, as an engine does."""
    probe(CausalModel(model), AdapterSlots(model))


@pytest.mark.parametrize(
    ("architecture", "fields", "right_as_it_is"),
    [
        ("gemma2", {"num_attention_heads": 4, "num_key_value_heads": 2}, False),
        ("gemma2", {"num_attention_heads": 4, "num_key_value_heads": 4}, True),
        ("nemotron_h", {}, False),
    ],
    ids=["grouped heads", "each with its own keys", "a state behind padding"],
)
def test_a_mended_model_is_served_in_a_batch(
    tmp_path: Path, architecture: str, fields: Mapping[str, Any], right_as_it_is: bool
) -> None:
    model: Any = small_model(architecture, **fields)
    (tmp_path / "config.json").write_text(json.dumps(asdict(model.args)))
    save_model(tmp_path, model)
    served(load_tree(tmp_path))
    as_it_is = load_model(tmp_path)[0]
    as_it_is.freeze()
    with nullcontext() if right_as_it_is else pytest.raises(ModelError, match="cannot be served"):
        served(as_it_is)
