"""Turns merge into samples where nothing was tokenised again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_episode, make_turn

from legos.credit.means import evaluation_metrics
from legos.credit.merging import samples_of_rollout
from legos.records.episode import Rollout, Turn
from legos.records.message import Sampling


def rollout(*turns: Turn) -> Rollout:
    return Rollout(role="first", seat="policy", policy="policy", turns=turns)


def test_turns_that_extend_each_other_are_one_sample() -> None:
    turns = (
        make_turn((1, 2), (3, 4), logprob=-0.5, version=1),
        make_turn((1, 2, 3, 4, 5, 6), (7,), logprob=-0.25, version=2),
    )
    (sample,) = samples_of_rollout(rollout(*turns), [0.5, -1.0], group="g", name="n")
    assert sample.token_ids == (1, 2, 3, 4, 5, 6, 7)
    assert sample.positions == (2, 3, 6)
    assert sample.logprobs == (-0.5, -0.5, -0.25)
    assert sample.versions == (1, 1, 2)
    assert sample.advantages == (0.5, 0.5, -1.0)
    assert sample.legal == ((), (), ())
    assert (sample.group, sample.rollout, sample.role) == ("g", "n", "first")


@pytest.mark.parametrize("number", [0, 1, None])
def test_one_answer_that_was_cut_short_marks_its_sample(number: int | None) -> None:
    turns = [make_turn((1, 2), (3,)), make_turn((1, 2, 3, 4), (5,))]
    if number is not None:
        cut = msgspec.structs.replace(turns[number].completion, finish_reason="length")
        turns[number] = msgspec.structs.replace(turns[number], completion=cut)
    (sample,) = samples_of_rollout(rollout(*turns), [1.0, 1.0], group="g")
    assert sample.truncated == (number is not None)


def test_an_answer_that_is_none_of_the_choices_is_not_cut_short_by_their_length() -> None:
    """Otherwise ``overlong_filter`` would leave out every illegal answer of a game."""
    [turn] = make_episode({"player": -1.0}).rollouts[0].turns
    cut = msgspec.structs.replace(turn.completion, finish_reason="length")
    turn = msgspec.structs.replace(turn, completion=cut, legal=False, choices=("1", "2"))
    for limit, is_cut in ((None, False), (1, True)):
        made = msgspec.structs.replace(rollout(turn), sampling=Sampling(max_tokens=limit))
        (sample,) = samples_of_rollout(made, [1.0], group="g")
        assert sample.truncated == is_cut
        play = msgspec.structs.replace(make_episode({"first": -1.0}), rollouts=(made,))
        assert evaluation_metrics([play])["truncation_share"] == is_cut


@pytest.mark.parametrize(
    "second",
    [
        make_turn((1, 2, 9, 5), (7,)),  # what was said came back as other tokens
        make_turn((1, 2), (7,)),  # the answer is not in the prompt at all
        make_turn((1, 2, 3, 5), (7,), temperature=0.5),
        make_turn((1, 2, 3, 5), (7,), restricted=True),
    ],
)
def test_a_turn_that_does_not_extend_the_last_starts_a_sample(second: Turn) -> None:
    samples = samples_of_rollout(
        rollout(make_turn((1, 2), (3,)), second), [1.0, 2.0], group="g", name="n"
    )
    assert [s.token_ids for s in samples] == [
        (1, 2, 3),
        second.completion.prompt_ids + second.completion.token_ids,
    ]
    assert [s.advantages for s in samples] == [(1.0,), (2.0,)]
    assert {s.rollout for s in samples} == {"n"}
    assert (samples[1].temperature, samples[1].restricted) == (
        second.completion.temperature,
        second.completion.restricted,
    )


def test_conversations_whose_turns_alternate_are_one_sample_each() -> None:
    turns = (
        make_turn((1, 2), (3,)),
        make_turn((1, 9), (4,)),
        make_turn((1, 2, 3, 5), (6,)),
        make_turn((1, 9, 4, 5), (7,)),
    )
    samples = samples_of_rollout(rollout(*turns), [1.0, 2.0, 3.0, 4.0], group="g")
    assert [s.token_ids for s in samples] == [(1, 2, 3, 5, 6), (1, 9, 4, 5, 7)]
    assert [s.advantages for s in samples] == [(1.0, 3.0), (2.0, 4.0)]


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Turns whose prompts extend what was said, or do not."""
    turns: list[Turn] = []
    said: tuple[int, ...] = ()
    for index in range(draw(st.integers(1, 5))):
        prompt = (said if draw(st.booleans()) else ()) + draw(TOKENS)
        answer = draw(TOKENS)
        turns.append(make_turn(prompt, answer, logprob=-1.0 - index, version=index))
        said = prompt + answer
    return turns


@given(conversations())
def test_every_sampled_token_is_in_one_sample_with_what_was_recorded(turns: list[Turn]) -> None:
    advantages = [float(index) for index in range(len(turns))]
    samples = samples_of_rollout(rollout(*turns), advantages, group="g")
    recorded = [
        (token, *numbers)
        for sample in samples
        for token, *numbers in zip(
            (sample.token_ids[p] for p in sample.positions),
            sample.logprobs,
            sample.versions,
            sample.advantages,
            strict=True,
        )
    ]
    expected = [
        (token, logprob, version, advantage)
        for turn, advantage in zip(turns, advantages, strict=True)
        for token, logprob, version in zip(
            turn.completion.token_ids,
            turn.completion.logprobs,
            turn.completion.versions,
            strict=True,
        )
    ]
    contexts = [s.token_ids[:p] for s in samples for p in s.positions]
    seen = [
        turn.completion.prompt_ids + turn.completion.token_ids[:k]
        for turn in turns
        for k in range(len(turn.completion.token_ids))
    ]
    # A turn may join an earlier sample, so the samples have the tokens in another order.
    assert sorted(zip(recorded, contexts, strict=True)) == sorted(zip(expected, seen, strict=True))


def test_one_advantage_for_every_turn() -> None:
    with pytest.raises(ValueError, match="shorter"):
        samples_of_rollout(rollout(make_turn(), make_turn()), [1.0], group="g")
