"""The exercises are well formed, and their targets are the exact distributions."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pretraining.practice import Exercise, collate, echo, made_up, prompt_ids, text_ids
from vocabulary import ASSISTANT, END, PAD, TOKENS, token_id

from legos.records.message import Message

seeds = st.integers(0, 2**32)


def exercise(prompt: str, *answers: str) -> Exercise:
    return Exercise((Message("user", prompt),), answers)


@given(seeds)
def test_made_up_moves_can_be_told_apart(seed: int) -> None:
    made = made_up(Random(seed))
    assert 1 <= len(set(made.answers)) == len(made.answers) <= 9
    prompt = made.chat[-1].content
    if "Moves: " in prompt:
        assert tuple(prompt.rpartition("\nMoves: ")[2].split(" ")) == made.answers
    else:
        assert tuple(prompt.split(" ")) == made.answers


@given(seeds)
def test_the_same_seed_makes_the_same_exercises(seed: int) -> None:
    first, second = Random(seed), Random(seed)
    made = [made_up(first) for _ in range(3)]
    assert made == [made_up(second) for _ in range(3)]
    arrays, again = collate(made, first), collate(made, second)
    np.testing.assert_array_equal(arrays.token_ids, again.token_ids)
    np.testing.assert_array_equal(arrays.targets, again.targets)


@given(seeds, st.integers(1, 30))
def test_an_echo_is_of_the_length_asked(seed: int, length: int) -> None:
    drawn = echo(Random(seed), length=length)
    assert drawn.answers == (drawn.chat[0].content,)
    assert len(drawn.answers[0]) == length


@given(seeds)
def test_every_target_is_a_distribution_that_allows_what_was_said(seed: int) -> None:
    rng = Random(seed)
    drawn = [made_up(rng) for _ in range(4)]
    batch = collate(drawn, rng)
    for row, made in enumerate(drawn):
        prompt = prompt_ids(made.chat)
        start = int(batch.starts[row])
        assert list(batch.token_ids[row, : start + 1]) == prompt
        assert TOKENS[prompt[-1]] == ASSISTANT
        said = [int(token) for token in batch.token_ids[row, start + 1 :]]
        answer = "".join(TOKENS[token] for token in said if token != token_id(PAD))
        assert answer in made.answers
        spelled = [*text_ids(answer), token_id(END)]
        sums = batch.targets[row].sum(-1)
        np.testing.assert_allclose(sums[: len(spelled)], 1.0, rtol=1e-5)
        np.testing.assert_array_equal(sums[len(spelled) :], 0.0)
        chances = batch.targets[row, np.arange(len(spelled)), spelled]
        np.testing.assert_allclose(chances.prod(), 1 / len(made.answers), rtol=1e-5)


def test_moves_that_begin_alike_share_their_first_token() -> None:
    batch = collate([exercise("Moves: 1 10 2", "1", "10", "2")], Random(1))
    one, two, end = token_id("1"), token_id("2"), token_id(END)
    np.testing.assert_allclose(batch.targets[0, 0, [one, two]], [2 / 3, 1 / 3], rtol=1e-6)
    if TOKENS[batch.token_ids[0, batch.starts[0] + 1]] == "1":
        np.testing.assert_allclose(batch.targets[0, 1, [end, token_id("0")]], 0.5)
    else:
        assert batch.targets[0, 1, end] == 1.0


def test_an_answer_that_is_listed_twice_is_twice_as_likely() -> None:
    batch = collate([exercise("Heads or tails?", "h", "t", "t")], Random(1))
    chances = batch.targets[0, 0, [token_id("h"), token_id("t")]]
    np.testing.assert_allclose(chances, [1 / 3, 2 / 3], rtol=1e-6)
    assert batch.targets[0, 1, token_id(END)] == 1.0
