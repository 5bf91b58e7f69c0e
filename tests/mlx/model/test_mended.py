"""Modules of mlx-lm that are wrong in a batch: as they are, and as the kit loads them."""

import json
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


@pytest.mark.parametrize("key_heads", [2, 4], ids=["grouped heads", "each with its own keys"])
def test_gemma2_is_served_in_a_batch(tmp_path: Path, key_heads: int) -> None:
    heads: dict[str, int] = {"num_attention_heads": 4, "num_key_value_heads": key_heads}
    model: Any = small_model("gemma2", **heads)
    (tmp_path / "config.json").write_text(json.dumps(asdict(model.args)))
    save_model(tmp_path, model)
    served(load_tree(tmp_path))
    as_it_is = load_model(tmp_path)[0]
    as_it_is.freeze()
    if key_heads == 4:
        served(as_it_is)
    else:
        with pytest.raises(ModelError, match="cannot be served"):
            served(as_it_is)
