"""The trees of choices that an engine's client keeps: their memory is bounded."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes import FakeEngine

from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.records.choices import tree_bytes
from legos.records.message import Sampling

MOST = 1 << 20


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Mapping[str, Path]) -> ChatTokenizer:
    return load_tokenizer(tiny_models["llama"])


@pytest.mark.parametrize(("characters", "count"), [(200, 30), (1300, 7)], ids=["small", "large"])
def test_the_bytes_of_kept_trees_are_bounded(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, characters: int, count: int
) -> None:
    """However many trees that is: a bound on their number would keep them all."""
    monkeypatch.setattr("legos.clients.constraints.TREES", MOST)
    engine = FakeEngine()
    client = EngineClient(engine, tokenizer, use_threads=True)

    async def ask() -> None:
        for number in range(count):
            choice = (f"{number:03}" * characters)[:characters]
            await client.complete([1], Sampling(choices=(choice,), max_tokens=1))
            kept = [tree for tree, _ in client._constraints.trees._values.values()]
            assert client._constraints.trees.size == sum(map(tree_bytes, kept)) <= MOST

    asyncio.run(ask())
    sizes = [tree_bytes(request.choices) for request in engine.requests if request.choices]
    assert sum(sizes) > MOST
    assert (
        sum(sizes[-len(client._constraints.trees._values) - 1 :]) > MOST
    )  # no more than needed were dropped
