"""Nobody starves: 64 clients of every kind at once, each kind beside how it fares alone."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from legos import apply_lora, load_model
from legos.clients.engine import EngineClient
from legos.records.message import Message, Sampling

CLIENTS = 64
MOST = 5.0  # times its time alone
ROUNDS = 3  # requests of each client of a kind
TRIES = 3  # other programs only add time: a kind that starves does so each time
SCHEMA = """{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string",
"maxLength": 5}}, "required": ["a", "b"], "additionalProperties": false}"""
Ask = Callable[[], Awaitable[object]]


@pytest.fixture(scope="module")
def kinds(tiny_models: Mapping[str, Path]) -> Iterator[dict[str, Ask]]:
    """What clients do, each time with another prompt or other weights."""
    model = load_model(tiny_models["llama"])
    apply_lora(model)
    engine = model.make_engine()
    client = EngineClient(engine, model.tokenizer, use_threads=True)
    start, number = model.base_adapter(), itertools.count()
    other = {name: np.asarray(array) + np.float32(0.01) for name, array in start.arrays.items()}
    adapters = itertools.cycle((start, replace(start, version=1, arrays=other)))
    engine.load_adapter(start).result()

    def sampling(max_tokens: int, schema: str | None = None) -> Sampling:
        return Sampling(max_tokens=max_tokens, seed=next(number), json_schema=schema)

    def chat() -> list[Message]:
        return [Message("user", f"Tell me {next(number)} things.")]

    words = [model.tokenizer.encode(f"{n}") for n in range(400)]
    large = [(model.tokenizer.render(chat()), words) for _ in range(60)]
    yield {
        "completion": lambda: client.complete(chat(), sampling(16)),
        "schema": lambda: client.complete(chat(), sampling(32, SCHEMA)),
        "score": lambda: client.score([(chat(), ["yes", "no", "12"]) for _ in range(4)]),
        "load": lambda: asyncio.wrap_future(engine.load_adapter(next(adapters))),
        "large score": lambda: asyncio.wrap_future(engine.score(large, end_ids=(2,))),
    }
    engine.close()
    model.close()


async def seconds(kinds: dict[str, Ask], counts: Mapping[str, int]) -> dict[str, float]:
    """The p99 of each kind while so many clients of each ask without a pause.

    Seconds are those in which the processor worked for this process, so that a busy machine
    changes nothing; all of it is computed on the processor.
    """
    took: dict[str, list[float]] = {kind: [] for kind in counts}

    def going() -> bool:
        return any(len(took[kind]) < ROUNDS * count for kind, count in counts.items())

    async def ask(kind: str) -> None:
        while going():
            began = time.process_time()
            await kinds[kind]()
            took[kind].append(time.process_time() - began)

    async with asyncio.TaskGroup() as group:
        for kind, count in counts.items():
            for _ in range(count):
                group.create_task(ask(kind))
    return {kind: float(np.percentile(times, 99)) for kind, times in took.items()}


async def ratios(kinds: dict[str, Ask], large: bool) -> dict[str, float]:
    """Each kind's p99 in the mix, of its p99 alone, with as many clients in all."""
    small = [kind for kind in kinds if kind != "large score"]
    await seconds(kinds, dict.fromkeys(small, 1))  # whatever is made once is made
    alone: dict[str, float] = {}
    for kind in small:
        alone |= await seconds(kinds, {kind: CLIENTS})
    score = asyncio.ensure_future(kinds["large score"]()) if large else None
    mixed = await seconds(kinds, dict.fromkeys(small, CLIENTS // len(small)))
    if score is not None:
        assert not score.done()
        score.cancel()
    return {kind: mixed[kind] / alone[kind] for kind in small}


@pytest.mark.nightly
@pytest.mark.parametrize("large", [False, True])
def test_no_kind_of_request_starves(kinds: dict[str, Ask], large: bool) -> None:
    """Also while one client has a hundred times as much scored as the others."""
    tried: list[dict[str, float]] = []
    while not tried or (max(tried[-1].values()) > MOST and len(tried) < TRIES):
        tried.append(asyncio.run(ratios(kinds, large)))
    least = {kind: min(each[kind] for each in tried) for kind in tried[0]}
    assert max(least.values()) <= MOST, tried
