"""Rows of all layers are selected and read as mlx-lm does it in each, with fewer waits."""

import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from conftest import EngineRoom
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList
from tiny_models import write_any_model

from legos.mlx.generate.batch_cache import extract_rows, select_rows
from legos.records.request import Request

ROWS, WINDOW = 5, 4


def filled(seed: int) -> list[Any]:
    """One batch cache of each kind, and both kinds of keys and values in one layer."""
    rng = np.random.default_rng(seed)
    padding = rng.integers(0, 6, ROWS).tolist()

    def keys_and_values(cache: Any) -> Any:
        for width in (7, *([1] * int(rng.integers(0, 4)))):
            cache.update_and_fetch(*mx.array(rng.standard_normal((2, ROWS, 2, width, 3))))
        return cache

    state = ArraysCache(2, left_padding=padding)
    state[0], state[1] = mx.array(rng.standard_normal((2, ROWS, 3)))
    both = CacheList(BatchKVCache(padding), BatchRotatingKVCache(WINDOW, padding))
    for part in both.caches:
        keys_and_values(part)
    return [
        keys_and_values(BatchKVCache(padding)),
        BatchKVCache(padding),
        keys_and_values(BatchRotatingKVCache(WINDOW, padding)),
        state,
        both,
    ]


def check_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        pairs = zip(tree_flatten(one.state), tree_flatten(other.state), strict=True)
        for (name, value), (_, wanted) in pairs:
            assert np.array_equal(np.array(value), np.array(wanted)), name


@given(
    seed=st.integers(0, 1000),
    indices=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=7),
)
def test_rows_are_selected_and_extracted_as_in_each_layer_alone(
    seed: int, indices: list[int]
) -> None:
    cache, expected = filled(seed), filled(seed)
    written = (0, 2, 3, 4)  # layers that hold tokens
    rows = list(extract_rows([cache[layer] for layer in written], indices))
    for index, row in zip(indices, rows, strict=True):
        check_equal(row, [expected[layer].extract(index) for layer in written])
    select_rows(cache, indices)
    for layer in expected:
        layer.filter(indices)
    check_equal(cache, expected)
    select_rows(cache, [len(indices) - 1, 0])  # the padding that remains is known too
    for layer in expected:
        layer.filter([len(indices) - 1, 0])
    check_equal(cache, expected)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with the name of each call that waits for the device because of what it reads."""
    seen: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any) -> Any:
            arrays = [value for _, value in tree_flatten(list(args)) if isinstance(value, mx.array)]
            graph = io.StringIO()
            mx.export_to_dot(graph, *arrays)
            if "->" in graph.getvalue():
                seen.append(name)
            return call(*args)

        return instead

    monkeypatch.setattr(mx.array, "tolist", watched("tolist", mx.array.tolist))
    monkeypatch.setattr(mx, "eval", watched("eval", mx.eval))
    return seen


@pytest.mark.parametrize(("length", "most"), [(9, 1), (70, 3)])
def test_a_row_that_ends_waits_once_for_all_layers(
    tmp_path: Path, waits: list[str], length: int, most: int
) -> None:
    """Rows of 70 tokens are also kept for later prompts, whose copies are evaluated once."""
    one = EngineRoom(write_any_model(tmp_path, architecture="llama", layers=4))
    rng = random.Random(0)
    asked = {
        number: Request(
            prompt_ids=tuple(rng.randrange(3, 300) for _ in range(length + number)),
            max_tokens=8 + 3 * number,
            seed=number,
        )
        for number in range(6)
    }
    one.submit(asked)
    one.tick(2)
    while one.engine._scheduler:
        before, ended = len(waits), len(one.answers)
        one.tick()
        assert len(waits) - before <= most * (len(one.answers) - ended)
    assert len(one.answers) == len(asked)
