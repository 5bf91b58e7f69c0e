"""What waits in the queue comes back from a checkpoint as it was."""

import json
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn
from msgspec.structs import replace
from random_samples import random_samples

from legos.fakes import make_sample
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.message import Message
from legos.run.episodes import episode_line, parse_episode, stored_episode
from legos.run.stored import groups_from_json, groups_to_json


@given(seed=st.integers(0, 2**32 - 1), num=st.integers(0, 12))
def test_samples_come_back_bit_for_bit(seed: int, num: int) -> None:
    samples = tuple(random_samples(np.random.default_rng(seed), num_samples=num))
    tokens = sum(len(sample.positions) for sample in samples)
    batch = Group(
        samples=samples,
        episodes=(),
        tokens_generated=tokens,
        metrics={"reward_mean": 1 / 3, "arena/turns": 7.0},
    )
    text = json.dumps(groups_to_json([batch, batch]))
    assert groups_from_json(json.loads(text)) == [batch, batch]


def test_what_is_booked_already_is_not_generated_again() -> None:
    sample = make_sample()
    batch = Group(
        samples=(sample,),
        episodes=(make_episode({"player": 1.0}),),
        tokens_generated=len(sample.positions) + 5,
        tokens_discarded={"failed": 5},
    )
    [again] = groups_from_json(groups_to_json([batch]))
    assert again.tokens_generated == len(sample.positions)
    assert not again.tokens_discarded
    assert not again.episodes


def test_plays_of_what_waits_come_back_as_they_are_written() -> None:
    children = (make_episode({"player": -1.0}),)
    plays = [replace(make_episode({"player": reward}), children=children) for reward in (1.0, 2.0)]
    played = replace(plays[0], task=Task(id="a", data=object()), metrics={"m": np.float64(0.1)})
    sample = make_sample()
    batch = Group(
        samples=(sample,),
        episodes=(played, *plays),
        tokens_generated=len(sample.positions),
    )
    text = json.dumps(groups_to_json([batch], plays_kept=1.0))
    [again] = groups_from_json(json.loads(text))
    written = [episode_line(stored_episode(episode)) for episode in batch.episodes]
    assert [episode_line(stored_episode(episode)) for episode in again.episodes] == written


def test_values_of_numpy_are_stored_as_what_they_are() -> None:
    text: Any = np.str_("odd")  # as from rng.choice
    task = Task(id=text, level=text, seed=cast("Any", np.int64(5)))
    turn = make_turn(token_ids=cast("Any", [np.int32(3)]))
    turn = replace(turn, messages=(Message("user", text),))
    played = replace(make_episode({"player": 1.0}, turns={"player": [turn]}), task=task)
    plain = replace(task, id="odd", level="odd", seed=5)
    again = parse_episode(episode_line(stored_episode(played)))
    assert (again.task, again.level, again.seed) == ("odd", "odd", 5)
    sample = replace(make_sample(), token_ids=cast("Any", tuple(map(np.int64, (1, 2, 3)))))
    waiting = Group(samples=(sample,), episodes=(played,), tokens_generated=1)
    [group] = groups_from_json(json.loads(json.dumps(groups_to_json([waiting], plays_kept=1.0))))
    assert group.episodes[0].task == plain
    assert group.samples == (sample,)


def test_a_play_with_values_of_other_types_costs_no_resume(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sample = make_sample()
    odd = replace(make_episode({"player": 1.0}), notes=(3,))
    batch = Group(samples=(sample,), episodes=(odd,), tokens_generated=len(sample.positions))
    [again] = groups_from_json(groups_to_json([batch], plays_kept=1.0))
    assert again.samples == batch.samples
    assert not again.episodes
    assert "plays in the checkpoint will not be in the run's episodes" in caplog.text
