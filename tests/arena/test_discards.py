"""What cannot be trained on is counted by its reason, and never ends a run."""

import logging
import math
from typing import Any

import pytest
from msgspec.structs import replace

from legos.arena.step import batch_of
from legos.credit import GRPOCredit, RAECredit
from legos.data.episode import Episode, Turn
from legos.testing import make_episode, make_turn


def turn(**changes: Any) -> Turn:
    said = make_turn(token_ids=(3, 4))
    return replace(said, completion=replace(said.completion, **changes))


def episodes(bad: Turn) -> list[Episode]:
    """Two plays; the second holds the turn in question after a good one."""
    return [
        make_episode({"player": 1.0}, turns={"player": [make_turn()]}),
        make_episode({"player": 0.0}, turns={"player": [make_turn(), bad]}),
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (turn(filtered=True), "sampling_filters"),
        (turn(prompt_ids=()), "no_logprobs"),
        (turn(logprobs=(-1.0, math.nan)), "invalid"),
        (turn(logprobs=(-1.0, -math.inf)), "invalid"),
        (turn(logprobs=(-1.0, 0.5)), "invalid"),
        (turn(temperature=0.0), "invalid"),
        (replace(turn(), reward=math.inf), "invalid"),
    ],
)
def test_a_rollout_that_cannot_be_trained_on_is_a_named_discard(
    bad: Turn, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        batch = batch_of(episodes(bad), GRPOCredit(deviation=False))
    assert batch.tokens_discarded == {reason: 3}
    assert batch.tokens_generated == 4
    assert [sample.advantages for sample in batch.samples] == [(0.5,)]  # it was compared with
    told = [record.message for record in caplog.records]
    assert len(told) == (reason == "invalid")
    assert all("arena/task/0/player is discarded" in message for message in told)


def test_samples_know_whether_the_limit_cut_them_short() -> None:
    batch = batch_of(episodes(turn(finish_reason="length")), GRPOCredit())
    assert [sample.truncated for sample in batch.samples] == [False, False, True]


def test_plays_without_another_to_be_compared_with_are_a_metric() -> None:
    credit = GRPOCredit()
    alone = make_episode({"player": 1.0}, task="alone")
    for _ in range(2):  # of this step, not of all so far
        batch = batch_of([*episodes(make_turn()), alone], credit)
        assert batch.metrics["credit/singletons"] == 1.0
    assert batch_of([alone], RAECredit()).metrics["credit/singletons"] == 0.0
