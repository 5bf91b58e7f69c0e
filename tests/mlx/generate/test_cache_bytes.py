"""Keys and values are written once: rows that end, join and grow move almost nothing else."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from cache_bytes import counted
from conftest import EngineRoom

from legos.records.request import Request

HEAD = 16  # size of a head of the tiny models


def requests_of_random_lengths(count: int, *, prompt: int, answer: int) -> dict[int, Request]:
    """Distinct prompts and answers of up to so many tokens; nothing tells how long an answer is."""
    rng = random.Random(0)

    def stop_after(most: int) -> Callable[..., bool]:
        return lambda tokens: len(tokens) >= most

    return {
        number: Request(
            prompt_ids=tuple(rng.randrange(3, 300) for _ in range(rng.randint(2, prompt))),
            max_tokens=answer,
            seed=number,
            stops=stop_after(rng.randint(1, answer)),
        )
        for number in range(count)
    }


@pytest.mark.nightly
@pytest.mark.parametrize("prompt", [16, 128])
def test_rows_that_end_are_refilled_in_place(room: Callable[..., EngineRoom], prompt: int) -> None:
    """From the first answer to the last prompt, as in a run, which always has prompts.

    Also while the next prompt is prefilled in several chunks. The buffers grow at the beginning.
    """
    one = room(max_rows=8, prefix_bytes=0, chunk_tokens=64)
    long = {n: tuple(range(n, n + prompt)) for n in range(100, 108)}
    one.submit({n: Request(prompt_ids=ids, max_tokens=48, seed=n) for n, ids in long.items()})
    one.submit(requests_of_random_lengths(64, prompt=prompt, answer=48))
    while not one.answers:
        one.tick()
    with counted(HEAD) as cache:
        before, answered = one.engine.stats(), len(one.answers)
        while one.engine._scheduler.waiting:
            one.tick()
        after = one.engine.stats()
    names = ("prefill_tokens_total", "tokens_generated_total")
    new = sum(after[name] - before[name] for name in names) - (len(one.answers) - answered)
    assert new > 1000  # the last token of each answer is not cached
    assert cache.total <= 1.2 * new * one.engine.capabilities.sizes.token_bytes


def addresses(one: EngineRoom) -> list[int]:
    """Where the buffers of all layers are."""
    layers = one.engine._scheduler._rows.cache.layers
    views = [np.asarray(buffer) for layer in layers for buffer in layer.state]
    return [view.__array_interface__["data"][0] for view in views]


def test_steps_write_in_place(room: Callable[..., EngineRoom]) -> None:
    """Also where a step is launched before the last one is read."""
    one = room(max_rows=8, prefix_bytes=0)
    one.submit({n: Request(prompt_ids=(3, 4 + n), max_tokens=99) for n in range(8)})
    one.tick(2)
    before = addresses(one)
    for steps in (2, 3, 4):
        one.tick(steps)
        assert addresses(one) == before
