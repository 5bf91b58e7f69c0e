"""Bad requests and scores are refused with a reason, and harm nobody else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from legos.errors import RequestError
from legos.records.choices import choice_tree
from legos.records.message import Filters
from legos.records.request import Request

Room = Callable[..., Any]
GOOD = Request(prompt_ids=(1, 2, 3), max_tokens=4, seed=1)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(prompt_ids=(), max_tokens=1), "the prompt is empty"),
        (Request(prompt_ids=(1, 358), max_tokens=1), "token 358; the vocabulary has 358"),
        (Request(prompt_ids=(1, -5), max_tokens=1), "token -5"),
        (Request(prompt_ids=(1,) * 1000, max_tokens=25), "exceed the context of 1024"),
        (Request(prompt_ids=(1,), max_tokens=0), "max_tokens is 0"),
        (Request(prompt_ids=(1,), max_tokens=1, adapter="v7"), "adapter 'v7' is not live"),
        (Request(prompt_ids=(1,), max_tokens=1, temperature=-1.0), "temperature is -1.0"),
        (Request(prompt_ids=(1,), max_tokens=1, temperature=np.nan), "temperature is nan"),
        (Request(prompt_ids=(1,), max_tokens=1, seed=-1), "seed is -1"),
        (Request(prompt_ids=(1,), max_tokens=1, seed=1 << 64), "seed is 18446744073709551616"),
        (Request(prompt_ids=(1,), max_tokens=1, restrict=True), "restrict=True needs choices"),
        (
            Request(prompt_ids=(1,), max_tokens=1, choices=choice_tree([(1, 999)], end_ids=())),
            "a choice holds token 999",
        ),
        (Request(prompt_ids=("a",), max_tokens=1), "the request is broken"),  # pyrefly: ignore[bad-argument-type]
        (Request(prompt_ids=(1,), max_tokens=1, adapter=None), "the request is broken"),  # pyrefly: ignore[bad-argument-type]
        (
            Request(prompt_ids=(1, 2, 3), max_tokens=4.0, seed=2),  # pyrefly: ignore[bad-argument-type]
            "max_tokens is 4.0; expected an int",
        ),
        (
            Request(prompt_ids=(1,), max_tokens=np.int64(4)),  # pyrefly: ignore[bad-argument-type]
            "max_tokens is np.int64(4); expected an int",
        ),
        (
            Request(prompt_ids=(1,), max_tokens=4, num_alternatives=3.0),  # pyrefly: ignore[bad-argument-type]
            "num_alternatives is 3.0; expected an int",
        ),
        (
            Request(prompt_ids=(1,), max_tokens=4, filters=Filters(top_k=5.0)),  # pyrefly: ignore[bad-argument-type]
            "top_k is 5.0; expected an int",
        ),
        (
            Request(prompt_ids=(1,), max_tokens=4, filters=Filters(logit_bias=((5.0, 1.0),))),  # pyrefly: ignore[bad-argument-type]
            "logit_bias names token 5.0; expected an int",
        ),
        (
            Request(prompt_ids=(1,), max_tokens=4, filters=Filters(logit_bias=[(5, 1.0)])),  # pyrefly: ignore[bad-argument-type]
            "temperature or filters: unhashable type: 'list'; expected numbers",
        ),
        (
            Request(prompt_ids=(1, 2, 3), max_tokens=4, temperature=np.array(1.0)),  # pyrefly: ignore[bad-argument-type]
            "temperature or filters: unhashable type: 'numpy.ndarray'",
        ),
    ],
)
@pytest.mark.parametrize("decode_ahead", ["on"])  # it is refused before it is decoded
def test_a_bad_request_fails_alone(room: Room, request_: Request, message: str) -> None:
    check_refused(room("llama"), request_, message)


def test_a_request_whose_stop_test_fails_ends_alone(room: Room) -> None:
    failing = replace(GOOD, stops=lambda _: bool(1 / 0))
    check_refused(room("llama"), failing, "its stop test failed: ZeroDivisionError")


def check_refused(one: Any, request: Request, message: str) -> None:
    one.submit({0: GOOD, 1: request, 2: GOOD})
    one.finish()
    assert isinstance(one.error(1), RequestError)
    assert message in str(one.error(1))
    assert one.answer(0) == one.answer(2)
    assert one.ask([GOOD])[0].token_ids == one.answer(0).token_ids


def test_names_of_refused_requests_are_not_kept(room: Room) -> None:
    """Whoever asks may make up as many as they like."""
    one = room("llama")
    one.submit({n: Request(prompt_ids=(1,), max_tokens=1, adapter=f"v{n}") for n in range(9)})
    one.submit({9: GOOD})
    one.finish()
    assert dict(one.engine._drawn) == {"policy": 4}


def test_scores_of_bad_prompts_are_refused(room: Room) -> None:
    one = room("llama")
    for prompts, message in (
        ([((), [(1,)])], "the prompt is empty"),
        ([((1,), [(1, 400)])], "token 400; the vocabulary has 358"),
        ([((1,) * 1000, [(2,) * 30])], "1030 tokens to score exceed the context of 1024; shorten"),
    ):
        scores = one.engine.score(prompts, end_ids=(2,))
        one.finish()
        with pytest.raises(RequestError, match=message):
            scores.result(timeout=0)
