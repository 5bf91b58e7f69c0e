"""Servers of reference log-probabilities are asked for a few lists at a time."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from legos.fakes import make_sample
from legos.remote.references import LISTS, ROWS, TOKENS, ReferenceServers


class Turns:
    """Two servers that finish what they have together, as one that works on it in turns does."""

    def __init__(self) -> None:
        self.servers = [SimpleNamespace(name=name) for name in "ab"]
        self.lists: list[int] = []
        self.most = 0
        self._running: list[tuple[Future[Any], Any]] = []

    def call(self, work: Any) -> Any:
        return work

    def score(self, part: Sequence[Any], **_: Any) -> Future[Any]:
        self.lists.append(len(part))
        scores: Future[Any] = Future()
        self._running.append(
            (scores, [[-0.5 - prompt[0]] * len(answer) for prompt, (answer,) in part])
        )
        self.most = max(self.most, len(self._running))
        if len(self._running) == 1:
            asyncio.get_running_loop().call_later(0.05, self._finish)
        return scores

    def _finish(self) -> None:
        running, self._running = self._running, []
        for scores, values in running:
            scores.set_result(values)


def test_a_step_of_many_samples_is_asked_for_a_few_lists_at_a_time() -> None:
    """Their time limit would otherwise be one for all samples of the step."""
    turns: Any = Turns()
    samples = [make_sample((number, 1, 2)) for number in range(10 * ROWS)]
    filled: Any = ReferenceServers(turns, num_vocabulary=1000)(samples)
    found = asyncio.run(filled)
    assert [sample.reference_logprobs for sample in found] == [
        (-0.5 - n,) for n in range(10 * ROWS)
    ]
    assert turns.lists == [ROWS] * 10
    assert turns.most == LISTS * len(turns.servers)


def test_long_samples_are_asked_for_in_smaller_lists() -> None:
    turns: Any = Turns()
    lengths = (TOKENS // 2, 3, TOKENS // 2, 2 * TOKENS)
    samples = [make_sample((number, *[1] * (n - 1))) for number, n in enumerate(lengths)]
    filled: Any = ReferenceServers(turns, num_vocabulary=1000)(samples)
    found = asyncio.run(filled)
    assert [sample.reference_logprobs for sample in found] == [(-0.5 - n,) for n in range(4)]
    assert turns.lists == [2, 1, 1]
