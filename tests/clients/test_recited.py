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
from legos.errors import RequestError
from legos.records.message import Completion, Sampling

ANSWER = (5, 6)


class Scores:
    """An engine whose adapter is replaced before it accepts a score, and again after that."""

    def __init__(self) -> None:
        self.live, self.early = 2, True
        self.asked: list[str] = []

    def versions(self) -> Mapping[str, int]:
        return {"policy": self.live}

    def score(
        self, prompts: Sequence[Any], *, adapter: str, **_: object
    ) -> "Future[list[list[float]]]":
        self.asked.append(adapter)
        found: Future[list[list[float]]] = Future()
        if adapter == "policy@2" and self.early:  # it was replaced before the engine read this
            self.early, self.live = False, 3
            found.set_exception(RequestError("adapter 'policy@2' is not live"))
        else:
            found.set_result([[-float(adapter.partition("@")[2])] * len(ANSWER)])
            self.live = 4  # a later one, which this score does not have
        return found


def said(engine: Any, adapter: str) -> Completion:
    client = EngineClient(engine, load_tokenizer(builtin_path()))
    recited = RecitedClient(client, (1, 2), ANSWER)
    return asyncio.run(recited.complete((), Sampling(), adapter=adapter))


def test_an_answer_is_scored_once_by_the_version_that_it_was_given_to() -> None:
    engine = Scores()
    found = said(engine, "policy")
    assert engine.asked == ["policy@2", "policy@3"]
    assert found.versions == (3,) * len(ANSWER)
    assert found.logprobs == (-3.0,) * len(ANSWER)


def test_a_version_that_is_asked_for_and_gone_is_refused() -> None:
    with pytest.raises(RequestError, match="policy@2"):
        said(Scores(), "policy@2")
