"""An answer that is recited has the version whose log-probabilities it has."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from legos.builtin import builtin_path
from legos.chat.tokenizer import load_tokenizer
from legos.clients.engine import EngineClient
from legos.clients.recited import RecitedClient
from legos.records.message import Completion, Sampling

ANSWER = (5, 6)


class Scores:
    """An engine whose adapter is replaced while the first scores are computed."""

    def __init__(self) -> None:
        self.live = 2
        self.asked: list[str] = []

    def versions(self) -> Mapping[str, int]:
        return {"policy": self.live}

    def score(
        self, prompts: Sequence[Any], *, adapter: str, **_: object
    ) -> "Future[list[list[float]]]":
        self.asked.append(adapter)
        found: Future[list[list[float]]] = Future()
        found.set_result([[-float(self.live)] * len(ANSWER)])
        self.live = 3
        return found


@pytest.mark.parametrize(
    ("adapter", "version", "logprob", "times"), [("policy", 3, -3.0, 2), ("policy@2", 2, -2.0, 1)]
)
def test_version_and_log_probabilities_are_of_one_adapter(
    adapter: str, version: int, logprob: float, times: int
) -> None:
    engine: Any = Scores()
    client = EngineClient(engine, load_tokenizer(builtin_path()))

    async def said() -> Completion:
        return await RecitedClient(client, (1, 2), ANSWER).complete((), Sampling(), adapter=adapter)

    found = asyncio.run(said())
    assert found.versions == (version,) * len(ANSWER)
    assert found.logprobs == (logprob,) * len(ANSWER)
    assert engine.asked == [adapter] * times
