"""The split of a model into trunk and output head, and the caches of single rows."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList

from legos.mlx.checks.small_models import small_model
from legos.mlx.model.cache_parts import extract_rows
from legos.mlx.model.forward import CausalModel


@pytest.mark.parametrize("name", ["qwen3", "cohere2", "gemma2", "gemma4_text", "granite", "mamba2"])
def test_logits_are_scaled_and_capped_where_they_are_needed(name: str) -> None:
    """A vocabulary of 262,144 at every position takes a GiB for 2,048 tokens."""
    fields: dict[str, Any] = {"logits_scaling": 8.0} if name == "granite" else {}
    tree = small_model(name, dtype=mx.bfloat16, **fields)
    forward = CausalModel(tree)
    assert forward.trunk is not tree
    ids = mx.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    rows, columns = mx.array([0, 1, 1]), mx.array([4, 0, 3])
    found = forward.logits_at(ids, rows, columns)
    assert mx.array_equal(found, tree(ids)[rows, columns].astype(mx.float32)).item()


def test_a_row_of_recurrent_states_holds_none_of_the_others() -> None:
    before, kept = mx.get_active_memory(), list[object]()
    for _ in range(4):
        layer = ArraysCache(2)
        layer.cache = [mx.random.normal((16, 256, 256)), mx.zeros((16, 1))]
        [row] = extract_rows([CacheList(layer)], [3])
        assert mx.array_equal(row[0].caches[0].cache[0], layer.cache[0][3:4]).item()
        kept.append(row)
    del layer, row
    assert mx.get_active_memory() - before < 6 * 256 * 256 * 4  # 4 rows, not 4 batches
    assert len(kept) == 4
