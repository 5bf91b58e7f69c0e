"""Rows of a batch cache hold their own tokens, whatever joins, forks, ends and moves."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from conftest import EngineRoom
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache
from numpy.typing import NDArray
from tiny_models import write_any_model

from legos.mlx.generate.batch_cache import BatchCache
from legos.mlx.generate.slot_cache import SlotCache
from legos.mlx.model.cache_parts import extract_rows
from legos.records.request import Request

HEADS, SIZE = 2, 3


class CacheWriter:
    """Stands in for a model: its keys and values are the tokens, its state their sum."""

    layers = (None, None)

    def make_cache(self) -> list[Any]:
        return [KVCache(), CacheList(KVCache(), ArraysCache(1))]


def write(layers: list[Any], tokens: list[list[int]], real: list[int]) -> None:
    """One forward pass of rows of one width, of which only the first tokens are real."""
    rows = mx.array(tokens).astype(mx.float32)
    keys = mx.broadcast_to(rows[:, None, :, None], (len(tokens), HEADS, rows.shape[1], SIZE))
    both = layers[1].caches
    for cache, scale in ((layers[0], 1), (both[0], 2)):
        cache.update_and_fetch(scale * keys, -scale * keys)
    sums = mx.array([[float(sum(row[:n]))] for row, n in zip(tokens, real, strict=True)])
    both[1][0] = sums if both[1][0] is None else both[1][0] + sums


def held(cache: BatchCache) -> list[tuple[NDArray[Any], NDArray[Any], float]]:
    """The tokens of every row in its two kinds of keys and values, and its state."""
    rows = extract_rows(cache.layers, range(max(cache.live) + 1))
    found: list[tuple[NDArray[Any], NDArray[Any], float]] = []
    for one, both in rows:
        part, state = both.caches
        for kv in (one, part):
            assert np.array_equal(kv.keys, -kv.values)
            assert kv.offset == kv.keys.shape[2]
        found.append(
            (np.array(one.keys)[0, 1, :, 2], np.array(part.keys)[0, 0, :, 0] / 2, state[0].item())
        )
    return found


@given(data=st.data())
def test_rows_hold_their_own_tokens(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    limit = data.draw(st.sampled_from((None, 60)))
    space_of = None if limit is None else (lambda slots: limit // slots)
    cache = BatchCache(CacheWriter(), max_slots=4, space_of=space_of)  # pyrefly: ignore[bad-argument-type]
    rows: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        new = [
            [rng.randrange(1, 99) for _ in range(rng.randint(1, 7))]
            for _ in range(rng.randint(1, 3))
        ]
        lengths = [len(row) for row in new]
        block = cache.begin([[] for _ in new], max(lengths), coming=rng.randrange(9))
        width = max(lengths)
        cache.prefill(block, [0] * len(new), width, lengths)
        write(block.layers, [row + [0] * (width - len(row)) for row in new], lengths)
        forks = [rng.randrange(len(new)) for _ in range(rng.randint(0, 4))]
        slots = cache.join(block, forks)
        rows |= {slot: new[row] for slot, row in zip(slots, forks, strict=True)}
        for _ in range(rng.randint(0, 5)):
            if not rows:
                break
            if rng.random() < 0.7:
                before = cache.settle()
                assert cache.live == set(range(len(before)))
                rows = {n: rows[slot] for n, slot in enumerate(before)}
            tokens = [rng.randrange(1, 99) for _ in range(cache.decode(rng.randrange(40)))]
            write(cache.layers, [[token] for token in tokens], [1] * len(tokens))
            rows = {slot: [*row, tokens[slot]] for slot, row in rows.items()}
            found = held(cache)
            for slot, row in rows.items():
                assert found[slot][0].tolist() == found[slot][1].tolist() == row
                assert found[slot][2] == sum(row)
            sources = [slot for slot in rows for _ in range(rng.choice((0, 1, 1, 1, 2)))]
            rows = {n: rows[source] for n, source in zip(cache.fork(sources), sources, strict=True)}
            assert cache.live == set(rows)


def test_a_slot_is_written_in_place() -> None:
    """A pass allocates less than one buffer of a layer, also after rows were moved."""
    cache = BatchCache(CacheWriter())  # pyrefly: ignore[bad-argument-type]
    block = cache.begin([[]] * 4, 5000, coming=9)
    cache.prefill(block, [0] * 4, 5000, [5000] * 4)
    write(block.layers, [[1] * 5000] * 4, [5000] * 4)
    cache.join(block, range(4))
    cache.fork([1, 2, 3])
    cache.settle()
    for _ in range(3):
        cache.decode()
        mx.eval([cache.layers[0].state])
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        write(cache.layers, [[1]] * 3, [1] * 3)
        mx.eval(cache.layers[0].state)
        buffer = cache.layers[0].nbytes // 2
        assert mx.get_peak_memory() - before < buffer // 10


def test_numbers_that_are_none_do_not_stay_in_a_slot() -> None:
    cache = BatchCache(CacheWriter())  # pyrefly: ignore[bad-argument-type]
    block = cache.begin([[], []], 3)
    cache.prefill(block, [0, 0], 3, [3, 3])
    write(block.layers, [[1, 2, 3]] * 2, [3, 3])
    slot: SlotCache = block.layers[0]
    assert slot.keys is not None
    slot.keys = slot.keys * mx.array(float("nan"))
    cache.wipe(block.slots)
    assert mx.all(slot.keys == 0).item()


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
    before, ended = len(waits), len(one.answers)
    one.finish()
    assert len(one.answers) == len(asked)
    assert len(waits) - before <= most * (len(asked) - ended)
