"""Messages, sampling parameters and completions refuse what no engine could honour."""

import math
from typing import Any

import pytest

from legos.errors import RecordError
from legos.records.message import Completion, Filters, Sampling


@pytest.mark.parametrize("temperature", [-0.1, math.inf, math.nan])
def test_temperature_is_a_finite_number_from_zero(temperature: float) -> None:
    with pytest.raises(RecordError, match="temperature"):
        Sampling(temperature=temperature)


def test_a_temperature_too_close_to_zero_is_refused() -> None:
    assert Sampling(temperature=0.0).temperature == 0.0
    assert Sampling(temperature=0.01).temperature == 0.01
    with pytest.raises(RecordError, match=r"temperature is 1e-05; expected 0, or at least 0\.001"):
        Sampling(temperature=1e-5)


def test_max_tokens_is_at_least_one() -> None:
    with pytest.raises(RecordError, match="max_tokens is 0"):
        Sampling(max_tokens=0)


def test_many_biases_are_checked_with_a_constant_amount_of_work_each() -> None:
    class Token(int):
        """Counts how often a token is compared or hashed."""

        work = 0

        def __eq__(self, other: object) -> bool:
            Token.work += 1
            return int(self) == other

        def __hash__(self) -> int:
            Token.work += 1
            return int.__hash__(self)

    count = 2000
    bias = tuple((Token(token), 1.0) for token in range(count))
    Sampling(filters=Filters(logit_bias=bias))
    assert count <= Token.work <= 4 * count
    with pytest.raises(RecordError, match="names token 7 more than once"):
        Sampling(filters=Filters(logit_bias=(*bias, (7, 1.0))))


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(RecordError, match=f"seed is {seed}"):
        Sampling(seed=seed)


def test_restriction_needs_choices() -> None:
    with pytest.raises(RecordError, match="restrict=True needs choices"):
        Sampling(restrict=True)
    assert Sampling(restrict=True, choices=("a",)).choices == ("a",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"filters": Filters(top_p=0.0)}, r"top_p is 0\.0; expected above 0, up to 1"),
        ({"filters": Filters(logit_bias=((-3, 1.0),))}, "logit_bias names token -3"),
        ({"filters": Filters(logit_bias=((3, math.nan),))}, "logit_bias of token 3 is nan"),
        ({"num_alternatives": -1}, "num_alternatives is -1; expected 0 to 20"),
        ({"num_alternatives": 21}, "num_alternatives is 21"),
        ({"restrict": True, "choices": ("a",), "json_schema": "{}"}, "both restrict=True and json"),
        ({"ignore_end": True, "choices": ("a",)}, "choices and json_schema end with"),
        ({"stop": ("END", "")}, "stop holds an empty text, which would end every answer at once"),
    ],
)
def test_what_bends_a_distribution_is_in_range(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        Sampling(**fields)


def test_filters_know_whether_they_look_back() -> None:
    assert not Filters(top_p=0.5, logit_bias=((1, 2.0),)).penalised
    assert Filters(repetition_penalty=1.1).penalised
    assert Filters(presence_penalty=-0.1).penalised
    assert Filters(frequency_penalty=0.1).penalised


def completion(**fields: Any) -> Completion:
    values: dict[str, Any] = {
        "prompt_ids": (1,),
        "token_ids": (2, 3),
        "logprobs": (-1.0, -2.0),
        "versions": (0, 0),
        "text": "ab",
        "finish_reason": "stop",
    }
    return Completion(**(values | fields))


@pytest.mark.parametrize(
    ("field", "value"), [("logprobs", (-1.0,)), ("versions", (0, 0, 0)), ("logprobs", ())]
)
def test_every_token_has_a_logprob_and_a_version(field: str, value: tuple[float, ...]) -> None:
    with pytest.raises(RecordError, match="2 tokens"):
        completion(**{field: value})


def test_legal_tokens_are_known_for_all_tokens_or_none() -> None:
    assert completion(legal=()).legal == ()
    assert completion(legal=((2,), (3,))).legal == ((2,), (3,))
    with pytest.raises(RecordError, match="legal of a completion of 2 tokens has 1 values"):
        completion(legal=((2,),))


def test_a_restricted_completion_says_what_was_legal() -> None:
    with pytest.raises(RecordError, match="legal of a completion of 2 tokens has 0 values"):
        completion(restricted=True)


def test_extras_are_known_for_all_tokens_or_none() -> None:
    assert completion(raw_logprobs=(-1.0, -2.0)).raw_logprobs == (-1.0, -2.0)
    with pytest.raises(RecordError, match="raw_logprobs of a completion of 2 tokens has 1 values"):
        completion(raw_logprobs=(-1.0,))
    with pytest.raises(RecordError, match="alternatives of a completion of 2 tokens has 3 values"):
        completion(alternatives=((), (), ()))


def test_what_filters_have_bent_is_not_trained_on() -> None:
    assert not completion(filtered=True).trainable


def test_only_tokens_with_their_prompt_can_be_trained_on() -> None:
    assert completion().trainable
    assert not completion(prompt_ids=()).trainable
    assert not completion(token_ids=(), logprobs=(), versions=()).trainable
