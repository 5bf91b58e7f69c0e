"""The decoding batch over many steps."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import mlx.core as mx
import pytest
from conftest import EngineRoom
from msgspec.structs import replace
from tiny_models import write_any_model

from legos.records.request import Request

STEPS, LOOK_EVERY = 198, 3  # decode steps; each half of them looks at all 32 ages of a cache
LAYERS = 4
MOST = 5 * LAYERS * 32  # pending operations: 5 for each step and layer, for at most 32 steps


def pending_operations(room: EngineRoom) -> int:
    """Number of inputs of operations that are not evaluated yet, in the cache of all rows."""
    cache = room.engine._scheduler._rows.cache.layers
    parts = [part for layer in cache for part in getattr(layer, "caches", (layer,))]
    arrays = [value for part in parts for value in vars(part).values()]
    graph = io.StringIO()
    mx.export_to_dot(graph, *(array for array in arrays if isinstance(array, mx.array)))
    return graph.getvalue().count("->")


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["qwen3_5", "lfm2", pytest.param("falcon_h1", marks=pytest.mark.nightly)]
)
def test_many_steps_leave_the_graph_as_large_as_it_was(
    tmp_path: Path, architecture: Literal["qwen3_5", "falcon_h1", "lfm2"]
) -> None:
    room = EngineRoom(
        write_any_model(tmp_path, architecture=architecture, layers=LAYERS), context=STEPS + 100
    )
    for number, prompt in enumerate(((1, 2), (3, 4))):
        room.submit({number: Request(prompt_ids=prompt, max_tokens=STEPS + 50)})
    pending: list[int] = []
    for _ in range(STEPS // LOOK_EVERY):
        room.tick(LOOK_EVERY)
        pending.append(pending_operations(room))
    assert not room.answers
    assert max(pending) <= MOST
    assert max(pending[len(pending) // 2 :]) <= max(pending[: len(pending) // 2])


def test_rows_of_unlike_lengths_stay_within_the_bytes_that_are_reserved(
    room: Callable[..., EngineRoom],
) -> None:
    """Every slot has space for the longest row."""
    limit = room().engine._scheduler.budget.capabilities.cache_bytes(3, 900, 256)
    one = room(cache_bytes=limit)
    lengths = [3, 4, 800, *range(5, 12)]
    one.submit(
        {
            length: Request(
                prompt_ids=tuple(range(3, 3 + length % 300)), max_tokens=30, seed=length
            )
            for length in lengths
        }
    )
    rows = 0
    while one.worker.tick():
        scheduler = one.engine._scheduler
        held = sum(layer.nbytes for layer in scheduler._rows.cache.layers)
        assert held <= limit
        assert one.engine.stats()["reserved_cache_bytes"] <= limit
        rows = max(rows, len(scheduler._rows))
    assert rows > 3
    assert sorted(one.answers) == sorted(lengths)


def test_rows_grow_by_the_tokens_that_still_come(room: Callable[..., EngineRoom]) -> None:
    """Short answers to short prompts take no space of 256 tokens each."""
    one = room()
    prompts = {n: tuple(range(3, 43 + n)) for n in range(8)}
    one.submit({n: Request(prompt_ids=ids, max_tokens=16, seed=n) for n, ids in prompts.items()})
    token_bytes = one.engine._scheduler.capabilities.sizes.token_bytes
    places = 0
    while one.worker.tick():
        rows = one.engine._scheduler._rows
        if len(rows):
            held = sum(layer.nbytes for layer in rows.cache.layers)
            places = max(places, held // len(rows) // token_bytes)
    assert sorted(one.answers) == sorted(prompts)
    assert 60 <= places <= 47 + 16 + 16


def test_without_a_request_the_engine_holds_no_rows(room: Callable[..., EngineRoom]) -> None:
    one = room()
    cache = one.engine._scheduler._rows.cache
    one.submit({n: Request(prompt_ids=(n,), max_tokens=50) for n in range(5, 9)})
    one.tick(3)
    assert cache.nbytes > 0
    one.cancel(5, 6, 7, 8)
    one.tick()
    assert cache.nbytes == 0
    long = Request(prompt_ids=(4,), max_tokens=20, seed=1)
    (whole,) = one.ask([long])
    one.submit({20: replace(long, end_ids=whole.token_ids[5:6])})
    while 20 not in one.answers:
        one.tick()
        one.load(0)  # reads the last step, which may end the request
    assert cache.nbytes == 0


def test_a_prompt_is_computed_once_where_its_samples_must_wait_for_room(
    room: Callable[..., EngineRoom],
) -> None:
    one = room(max_rows=8, prefix_bytes=0)
    others = {n: Request(prompt_ids=(3, 4, 5 + n), max_tokens=9 + n, seed=n) for n in range(7)}
    one.submit(others)
    one.tick(2)
    before = one.engine.stats()["prefill_tokens_total"]
    group = {n: Request(prompt_ids=tuple(range(3, 23)), max_tokens=9, seed=n) for n in (7, 8)}
    one.submit(group)
    one.finish()
    assert sorted(one.answers) == list(range(9))
    assert one.engine.stats()["prefill_tokens_total"] - before == 20


def test_rows_are_admitted_by_what_they_are_expected_to_hold(
    room: Callable[..., EngineRoom],
) -> None:
    """Answers of a quarter of max_tokens; 4 rows would fit if each held all of them."""
    most = 800
    sizes = room().engine._scheduler.capabilities.sizes
    one = room(cache_bytes=4 * (4 + most) * sizes.token_bytes)
    asked = {
        n: Request(
            prompt_ids=(3, 4, 5, n),
            max_tokens=most,
            seed=n,
            stops=lambda tokens: len(tokens) >= most // 4,
        )
        for n in range(6, 18)
    }
    one.submit(asked)
    rows: list[int] = []
    while one.worker.tick():
        rows.append(len(one.engine._scheduler._rows))
    assert sorted(one.answers) == sorted(asked)
    assert sum(rows) / len(rows) >= 2.5 * 4


def test_answers_without_a_limit_are_decoded_together(room: Callable[..., EngineRoom]) -> None:
    """Chats may use the whole context, and their clients rarely set ``max_tokens``."""
    context = 1 << 17
    need = room().engine._scheduler.capabilities.cache_bytes
    one = room(context=context, cache_bytes=need(4, 2100, context))
    asked = {
        n: Request(
            prompt_ids=(3, 4, 5, n),
            max_tokens=context - 4,
            seed=n,
            stops=lambda tokens: len(tokens) >= 8,
        )
        for n in range(6, 12)
    }
    one.submit(asked)
    rows = 0
    while one.worker.tick():
        rows = max(rows, len(one.engine._scheduler._rows))
    assert rows == 4
    assert sorted(one.answers) == sorted(asked)


@pytest.mark.slow
def test_rows_that_outgrow_the_memory_wait_and_change_no_draw(
    room: Callable[..., EngineRoom],
) -> None:
    large = room()
    need = large.engine._scheduler.capabilities.cache_bytes
    small = room(cache_bytes=need(4, 84, 80))
    asked = {n: Request(prompt_ids=(3, 4, 5, n), max_tokens=80, seed=n) for n in range(6, 14)}
    large.submit(asked)
    large.finish()
    small.submit(asked)
    scheduler = small.engine._scheduler
    most = 0
    while small.worker.tick():
        held = sum(layer.nbytes for layer in scheduler._rows.cache.layers)
        assert max(held, scheduler.budget.taken) <= scheduler.budget.limit
        most = max(most, len(scheduler._rows))
    assert most > 4
    assert small.engine.stats()["prefill_tokens_total"] > 4 * len(asked)  # some started again
    for number in asked:
        found, expected = small.answer(number), large.answer(number)
        assert found.token_ids == expected.token_ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
