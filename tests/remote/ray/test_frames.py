"""Requests and results arrive in another process as they were sent."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.errors import EngineError
from legos.records.choices import ChoiceNode, choice_tree
from legos.records.message import Filters, Generated
from legos.records.request import Progress, Request
from legos.remote.ray.frames import pack_requests, pack_results, unpack_requests, unpack_results

ids = st.integers(0, 2**31)
texts = st.lists(st.text(max_size=3), max_size=3).map(tuple)
tokens = st.lists(ids, max_size=4).map(tuple)
nats = st.floats(-1e30, 0)
answers = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5)
requests = st.builds(
    Request,
    prompt_ids=tokens,
    max_tokens=ids,
    end_ids=tokens,
    choices=st.none() | answers.map(lambda each: choice_tree(each, end_ids=(7,))),
    choice_texts=texts,
    stop=texts,
    adapter=st.text(max_size=3),
    json_schema=st.none() | st.text(max_size=3),
    stream=st.booleans(),
    temperature=st.floats(0, 2),
    seed=st.integers(0, 2**64 - 1),
    restrict=st.booleans(),
    filters=st.none() | st.builds(Filters, top_k=ids, logit_bias=st.just(((3, 0.5),))),
    num_alternatives=ids,
    raw_logprobs=st.booleans(),
    raw_alternatives=st.booleans(),
)
sampled = {
    "token_ids": tokens,
    "logprobs": st.lists(nats, max_size=3).map(tuple),
    "versions": tokens,
    "raw_logprobs": st.lists(nats, max_size=3).map(tuple),
    "alternatives": st.lists(st.just(((1, -0.5), (2, -1.5))), max_size=2).map(tuple),
}
generated = st.builds(
    Generated,
    legal=st.lists(tokens, max_size=2).map(tuple),
    finish_reason=st.sampled_from(("stop", "length", "cancelled")),
    **sampled,
)


def plain(request: Request) -> Request:
    return msgspec.structs.replace(request, choices=None)


def assert_same_tree(one: ChoiceNode | None, other: ChoiceNode | None) -> None:
    waiting = [(one, other)]
    while waiting:
        a, b = waiting.pop()
        if a is None or b is None:
            assert a is b
            continue
        assert (a.legal, a.whole, a.depth, a.largest) == (b.legal, b.whole, b.depth, b.largest)
        assert list(a.children) == list(b.children)
        waiting += zip(a.children.values(), b.children.values(), strict=True)


@given(st.lists(st.tuples(st.lists(st.tuples(ids, requests), max_size=3), tokens), max_size=3))
def test_requests_arrive_as_they_were(
    frames: list[tuple[list[tuple[int, Request]], tuple[int, ...]]],
) -> None:
    heard = unpack_requests(pack_requests(frames))
    assert len(heard) == len(frames)
    for (sent, cancelled), (came, told) in zip(frames, heard, strict=True):
        assert list(told) == list(cancelled)
        assert [(n, plain(r)) for n, r in came] == [(n, plain(r)) for n, r in sent]
        for (_, one), (_, other) in zip(sent, came, strict=True):
            assert_same_tree(one.choices, other.choices)


@given(st.lists(st.lists(st.tuples(ids, generated), max_size=3), max_size=3))
def test_results_arrive_as_they_were(frames: list[list[tuple[int, Generated]]]) -> None:
    (heard,) = unpack_results(pack_results(frames)) or [[]]
    assert heard == [item for frame in frames for item in frame]


def test_progress_comes_before_the_end_and_errors_keep_their_kind() -> None:
    parts = [Progress(token_ids=(n,), logprobs=(-0.5,), versions=(1,)) for n in range(3)]
    end = Generated(token_ids=(0, 1, 2), logprobs=(-0.5,) * 3, versions=(1,) * 3)
    sent = [[(4, parts[0]), (5, EngineError("gone")), (4, parts[1])], [(4, parts[2]), (4, end)]]
    (heard,) = unpack_results(pack_results(sent))
    assert [result for number, result in heard if number == 4] == [*parts, end]
    (error,) = [result for number, result in heard if number == 5]
    assert isinstance(error, EngineError)
    assert str(error) == "gone"


class TwoPartError(EngineError):
    """Cannot be made again from its arguments."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def test_an_error_that_cannot_be_made_again_arrives_as_its_text() -> None:
    ((sent,),) = unpack_results(pack_results([[(5, TwoPartError("device", "gone"))]]))
    assert type(sent[1]) is EngineError
    assert str(sent[1]) == "TwoPartError: device: gone"


def test_an_answer_of_thousands_of_tokens_arrives() -> None:
    tree = choice_tree([range(5000), (3,)], end_ids=(1,))
    request = Request(prompt_ids=(1,), max_tokens=1, choices=tree)
    ((((_, came),), _),) = unpack_requests(pack_requests([([(0, request)], ())]))
    assert_same_tree(came.choices, tree)


def test_games_share_their_trees_at_the_other_end() -> None:
    tree = choice_tree([(3,), (4, 5)], end_ids=(1,))
    frame = [(n, Request(prompt_ids=(n,), max_tokens=1, choices=tree)) for n in range(3)]
    ((came, _),) = unpack_requests(pack_requests([(frame, ())]))
    ((later, _),) = unpack_requests(pack_requests([(frame, ())]))
    assert len({id(request.choices) for _, request in [*came, *later]}) == 1


def test_what_is_made_where_a_request_arrives_stays_behind() -> None:
    request = Request(prompt_ids=(1,), max_tokens=1, stop=("x",), stops=lambda _: True)
    ((((_, came),), _),) = unpack_requests(pack_requests([([(0, request)], ())]))
    assert came.stops is None
    assert came.stop == ("x",)


def test_a_request_with_something_else_is_not_sent() -> None:
    request = Request(prompt_ids=(1,), max_tokens=1, adapter=object())  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotImplementedError, match="cannot hold object"):
        pack_requests([([(0, request)], ())])
