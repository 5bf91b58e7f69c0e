"""What cannot be trained on is counted by its reason, and never ends a run."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from made_records import make_episode, make_turn
from msgspec.structs import replace

from legos.credit import DrGRPOCredit, GRPOCredit, RAECredit
from legos.credit.credited import with_samples
from legos.errors import ArenaError
from legos.records.episode import Episode, Turn
from legos.records.group import Group


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
        (turn(adapter="old"), "wrong_adapter"),
        (turn(adapter="old@3", filtered=True), "wrong_adapter"),
        (turn(filtered=True), "sampling_filters"),
        (turn(prompt_ids=()), "no_logprobs"),
        (turn(logprobs=(-1.0, math.nan)), "invalid"),
        (turn(logprobs=(-1.0, -math.inf)), "invalid"),
        (turn(logprobs=(-1.0, 0.5)), "invalid"),
        (turn(logprobs=(-1.0, None)), "invalid"),
        (turn(temperature=0.0), "invalid"),
        (replace(turn(), reward=math.inf), "invalid"),
    ],
)
def test_a_rollout_that_cannot_be_trained_on_is_a_named_discard(
    bad: Turn, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        batch = with_samples(Group(), episodes(bad), DrGRPOCredit())
    assert batch.tokens_discarded == {reason: 3}
    assert batch.tokens_generated == 4
    assert [sample.advantages for sample in batch.samples] == [(0.5,)]  # it was compared with
    told = [record.message for record in caplog.records]
    assert len(told) == 1
    assert f"arena/task/0/player is discarded: {reason}" in told[0]
    assert told[0].endswith("(1 such rollouts in these plays)")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda played: [{} for _ in played], r"gave \{\} for a play in which 'player' had 1 turn"),
        (lambda played: [{"player": 1.0} for _ in played], r"one number per turn"),
        (lambda played: [{"player": [1.0, 2.0]} for _ in played], r"\[1\.0, 2\.0\].*had 1 turns"),
        (lambda played: [{"player": [1.0]}], r"gave 1 mappings for 2 plays"),
        (lambda played: None, r"failed:\n.*TypeError"),
        (lambda played: 1 / 0, r"failed:\n.*ZeroDivisionError"),
    ],
)
def test_a_rule_of_ones_own_that_gives_nonsense_is_named(
    given: Callable[[Sequence[Episode]], Any], told: str
) -> None:
    class Mine(RAECredit):
        def assign(self, episodes: Sequence[Episode]) -> Any:
            return given(episodes)

    played = [make_episode({"player": 1.0}, turns={"player": [make_turn()]}) for _ in range(2)]
    with pytest.raises(ArenaError, match=rf"(?s)credit rule Mine .*{told}"):
        with_samples(Group(), played, Mine())


def test_advantages_of_an_array_become_numbers_that_a_checkpoint_can_hold() -> None:
    class Mine(RAECredit):
        def assign(self, episodes: Sequence[Episode]) -> Any:
            return [{"player": np.array([0.5], np.float32)} for _ in episodes]

    played = [make_episode({"player": 1.0}, turns={"player": [make_turn()]})]
    (sample,) = with_samples(Group(), played, Mine()).samples
    assert [type(advantage) for advantage in sample.advantages] == [float]


def test_samples_know_whether_the_limit_cut_them_short() -> None:
    batch = with_samples(Group(), episodes(turn(finish_reason="length")), GRPOCredit())
    assert [sample.truncated for sample in batch.samples] == [False, False, True]


def test_plays_without_another_to_be_compared_with_are_a_metric() -> None:
    credit = GRPOCredit()
    alone = make_episode({"player": 1.0}, task="alone")
    for _ in range(2):  # of this step, not of all so far
        batch = with_samples(Group(), [*episodes(make_turn()), alone], credit)
        assert batch.metrics["credit/singletons"] == 1.0
    assert with_samples(Group(), [alone], RAECredit()).metrics["credit/singletons"] == 0.0
