"""Samples of one prompt hold its keys and values once, and draw what they draw with copies."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cache_bytes import counted
from conftest import EngineRoom
from tiny_models import write_any_model

from legos.mlx.generate import prefill_queue
from legos.records.request import Request

Room = Callable[..., EngineRoom]
HEAD = 16  # size of a head of the tiny models
PROMPT, SAMPLES = 200, 8


@pytest.fixture
def copying() -> Callable[[EngineRoom], EngineRoom]:
    """Makes an engine copy prompts into the slot of every sample."""

    def copies(one: EngineRoom) -> EngineRoom:
        waiting = one.engine._scheduler.waiting
        waiting.capabilities = replace(waiting.capabilities, shares_prefix=False)
        return one

    return copies


def prompt(seed: int, length: int = PROMPT) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, 300) for _ in range(length))


def samples(ids: tuple[int, ...], first: int, count: int = SAMPLES, **also: Any) -> dict[int, Any]:
    given: dict[str, Any] = {"max_tokens": 24, **also}
    return {
        number: Request(prompt_ids=ids, seed=number, **given)
        for number in range(first, first + count)
    }


def held_bytes(one: EngineRoom) -> int:
    return one.engine._scheduler._rows.cache.nbytes


def place_bytes(one: EngineRoom) -> int:
    return one.engine.capabilities.sizes.token_bytes


def test_a_prompt_is_held_and_computed_once(room: Room) -> None:
    one = room(prefix_bytes=0)
    one.submit(samples(prompt(0), 0))
    most = 0
    while one.worker.tick():
        most = max(most, held_bytes(one))
        assert one.engine.stats()["reserved_cache_bytes"] >= held_bytes(one)
    answer = 2 * 24  # a slot has space for twice what it holds at most
    assert most <= (PROMPT + 1 + SAMPLES * answer) * place_bytes(one)
    assert one.engine.stats()["prefill_tokens_total"] == PROMPT
    assert held_bytes(one) == 0


def test_no_sample_copies_the_prompt(room: Room) -> None:
    one = room(prefix_bytes=0)
    with counted(HEAD) as cache:
        one.submit(samples(prompt(0), 0, max_tokens=2))
        one.finish()
    # The prompt, then one token of each sample; buffers begin with zeros.
    places = PROMPT + SAMPLES
    assert cache.total <= (2 * places + 2 * 32 * SAMPLES) * place_bytes(one)


def test_many_more_samples_fit_than_with_copies(
    room: Room, copying: Callable[[EngineRoom], EngineRoom]
) -> None:
    limit = room().engine.capabilities.cache_bytes(4, PROMPT + 24, 24)
    rows: list[int] = []
    for one in (room(cache_bytes=limit), copying(room(cache_bytes=limit))):
        one.submit(samples(prompt(0), 0, 16))
        most = 0
        while one.worker.tick():
            most = max(most, len(one.engine._scheduler._rows))
            assert held_bytes(one) <= limit
        assert len(one.answers) == 16
        rows.append(most)
    assert rows[0] == 16
    assert rows[1] <= 6


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))]
)
def test_draws_are_those_of_copies(
    room: Room, copying: Callable[[EngineRoom], EngineRoom], seed: int
) -> None:
    """With other rows, restarts for want of memory, new weights, cancellations and later turns."""
    rng = random.Random(seed)
    limits: dict[str, Any] = {"max_rows": rng.choice((6, 16, 64))}
    if rng.random() < 0.5:
        limits["cache_bytes"] = room().engine.capabilities.cache_bytes(6, 260, 40)
    if rng.random() < 0.5:
        limits["prefix_bytes"] = 0
    rooms = room(**limits), copying(room(**limits))
    number = 0
    for turn in range(4):
        asked: dict[int, Request] = {}
        for _ in range(rng.randint(1, 3)):
            ids = prompt(rng.randrange(3), rng.choice((5, 130, 200)))
            tokens, ends = rng.randint(2, 40), tuple(rng.sample(range(358), 10))
            temperature = rng.choice((0.0, 1.0, 1.0))
            count = rng.choice((1, 2, 8))
            asked |= samples(
                ids, number, count, max_tokens=tokens, end_ids=ends, temperature=temperature
            )
            number += count
        gone = rng.sample(sorted(asked), min(len(asked), 2))
        swap = turn % 2 == 1
        for one in rooms:
            one.submit(asked)
            one.tick(3)
            one.cancel(*gone)
            if swap:
                one.finish()
                one.load(turn)
    for one in rooms:
        one.finish()
    for each in range(number):
        found, expected = (one.answer(each) for one in rooms)
        if "cancelled" in (found.finish_reason, expected.finish_reason):
            continue  # a few tokens more or less
        assert found.token_ids == expected.token_ids
        assert found.versions == expected.versions
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.nightly
def test_a_long_prompt_after_many_short_ones_stays_within_the_limit(room: Room) -> None:
    """Prefixes move together before the buffers of all of them get longer."""
    limit = room().engine.capabilities.cache_bytes(1, 3200, 40)
    one = room(cache_bytes=limit, prefix_bytes=0)
    for group in range(12):
        tokens = 40 if group == 11 else 5
        one.submit(samples(prompt(group, 130), 2 * group, 2, max_tokens=tokens))
    one.tick(14)
    one.submit(samples(prompt(20, 900), 90, 4, max_tokens=30))
    most = 0
    while one.worker.tick():
        most = max(most, held_bytes(one))
    assert most <= limit
    assert len(one.answers) == 28
    for asked in (samples(prompt(11, 130), 22, 2, max_tokens=40), samples(prompt(20, 900), 90, 4)):
        wanted = room().ask(list(asked.values()))
        for number, expected in zip(asked, wanted, strict=True):
            found = one.answer(number).token_ids[: len(expected.token_ids)]
            assert found == expected.token_ids


def test_the_next_turn_continues_a_sample_with_its_prompt(room: Room) -> None:
    """A sample that ends is kept for later prompts, its prompt included."""
    one = room()
    first = one.ask(list(samples(prompt(0), 0, max_tokens=70).values()))
    before = one.engine.stats()["prefill_tokens_total"]
    assert before == PROMPT
    ids = (*prompt(0), *first[3].token_ids, 7, 8)
    (second,) = one.ask([Request(prompt_ids=ids, max_tokens=9, seed=1)])
    assert one.engine.stats()["prefill_tokens_total"] - before <= 3
    (expected,) = room().ask([Request(prompt_ids=ids, max_tokens=9, seed=1)])
    assert second.token_ids == expected.token_ids
    assert second.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_new_weights_reach_samples_that_are_decoded(room: Room) -> None:
    """The prompt keeps its keys and values, and later tokens carry the new version."""
    one = room()
    one.submit(samples(prompt(0), 0))
    one.tick(4)
    assert one.engine._scheduler._rows.cache._prefix_of
    one.load(5)
    one.finish()
    for number in range(SAMPLES):
        versions = one.answer(number).versions
        assert versions == tuple(sorted(versions))
        assert {versions[0], versions[-1]} == {0, 5}


def test_short_prompts_and_single_samples_are_copied(room: Room) -> None:
    one = room()
    one.submit(samples(prompt(0, prefill_queue.MIN_SHARED - 1), 0) | samples(prompt(1), 20, 1))
    while one.worker.tick():
        assert not one.engine._scheduler._rows.cache._prefix_of


@pytest.mark.parametrize("architecture", ["gemma3_text", "falcon_h1"])
def test_models_with_other_layers_hold_copies(tmp_path: Path, architecture: Any) -> None:
    one = EngineRoom(write_any_model(tmp_path, architecture=architecture, layers=2))
    assert not one.engine.capabilities.shares_prefix
    answers = one.ask(list(samples(prompt(0), 0, 3, max_tokens=4).values()))
    assert [len(answer.token_ids) for answer in answers] == [4] * 3


def test_counters_may_be_read_on_other_threads(room: Room) -> None:
    one = room()
    stopped, errors = threading.Event(), list[Exception]()

    def read() -> None:
        while not stopped.is_set():
            try:
                one.engine.stats()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for group in range(4):
        one.submit(samples(prompt(group), SAMPLES * group, max_tokens=3 + 5 * group))
    one.finish()
    stopped.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(one.answers) == 4 * SAMPLES
