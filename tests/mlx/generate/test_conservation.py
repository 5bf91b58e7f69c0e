"""No request is lost: what the engine accepted is answered or held, whatever happens between."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from legos.errors import RequestError
from legos.records.request import Generated, Progress, Request

Room = Callable[..., Any]
LONG = Request(prompt_ids=tuple(range(3, 43)), max_tokens=3, seed=1)


def test_who_waits_under_the_tokens_of_a_prefill_has_one_of_its_own(room: Room) -> None:
    one = room("llama", prefill_tokens=4)
    one.submit({0: LONG, 1: LONG})
    one.tick()  # the prefill has begun, and takes ten steps
    one.submit({2: LONG})
    one.tick()
    one.load(7)
    one.finish()
    assert one.answer(0) == one.answer(1)
    assert one.answer(0).versions == (0, 7, 7)
    assert one.answer(2).versions == (7, 7, 7)


@pytest.mark.parametrize("length", [40, 200], ids=["rows", "a prefix"])
def test_a_prefill_ends_when_all_its_requests_are_cancelled(room: Room, length: int) -> None:
    one = room("llama", prefill_tokens=4, chunk_tokens=4)
    decoded = Request(prompt_ids=(8, 9), max_tokens=20, seed=1)
    prompt = Request(prompt_ids=tuple(range(3, 3 + length)), max_tokens=3)
    one.submit({9: decoded})
    one.tick(2)
    one.submit({0: prompt, 1: replace(prompt, seed=1)})
    one.tick(2)
    one.cancel(0, 1)
    one.tick()
    assert one.engine._scheduler.waiting._underway is None
    one.finish()
    (after,) = one.ask([prompt])
    alone = room("llama").ask([decoded, prompt])
    assert [one.answer(9).token_ids, after.token_ids] == [answer.token_ids for answer in alone]
    one.submit({20: prompt})
    one.tick()
    one.cancel(20)
    assert not one.worker.tick()


@pytest.mark.nightly
def test_rows_that_wait_for_room_do_not_keep_the_bytes_that_their_elders_need(room: Room) -> None:
    """A row that forked and waits to be computed again holds nothing on the device."""
    need = room("llama").engine._scheduler.budget.capabilities.cache_bytes
    one = room("llama", max_rows=1, cache_bytes=4 * need(1, 5, 16))
    forking = {n: Request(prompt_ids=(1, 2), max_tokens=3, seed=n) for n in range(4)}
    one.submit(forking | {9: Request(prompt_ids=(8, 9), max_tokens=1000)})
    for _ in range(1200):
        if not one.worker.tick():
            break
    assert sorted(one.answers) == [*forking, 9]


def test_a_long_prompt_has_its_turn_among_short_ones(room: Room) -> None:
    """Of those that draw for the last time, short rows do not go before the eldest for ever."""
    one = room("llama", chunk_tokens=16)
    one.submit({0: Request(prompt_ids=(9, 9), max_tokens=200, seed=1)})  # decoding goes on
    one.tick()
    one.submit({1: Request(prompt_ids=tuple(range(50, 64)), max_tokens=1)})
    for step in range(30):
        first = 10 + 8 * step
        short = {n: Request(prompt_ids=(n, 7, 7), max_tokens=1) for n in range(first, first + 8)}
        one.submit(short)
        one.tick()
    assert len(one.answer(1).token_ids) == 1
    assert 0 not in one.answers


def test_a_prompt_is_computed_in_the_end_however_often_weights_come(room: Room) -> None:
    one = room("llama", chunk_tokens=4, prefill_tokens=4)
    one.submit({0: Request(prompt_ids=(9, 9), max_tokens=500, seed=1, adapter="base")})
    one.tick()
    long = {n: Request(prompt_ids=tuple(range(n, n + 40)), max_tokens=2) for n in range(3, 9)}
    one.submit(long)
    for step in range(70):  # ten chunks for each of six rows, and their second tokens
        one.tick()
        one.load(step % 3)
    assert sorted(one.answers) == sorted(long)


def test_weights_stay_while_a_block_is_prefilled_with_them(room: Room) -> None:
    """A block has a row of the policy, which is cancelled, and one of a rival, which goes on."""
    one = room("llama", prefill_tokens=4, chunk_tokens=3)
    one.make_live(one.adapter(1, name="policy"))
    one.make_live(one.adapter(2, name="rival"))
    one.submit({0: LONG, 1: replace(LONG, adapter="rival")})
    one.tick()
    one.cancel(0)
    dropped = one.engine.drop_adapter("policy")
    while one.worker.tick():
        pass
    dropped.result(timeout=0)
    assert isinstance(one.answers[1][-1], Generated)


ASK = st.builds(
    Request,
    prompt_ids=st.sampled_from([LONG.prompt_ids[:length] for length in (40, 39, 5)]),
    max_tokens=st.sampled_from((2, 5, 1)),
    seed=st.integers(0, 2),
    stream=st.booleans(),
    adapter=st.sampled_from(("policy", "policy", "policy@0", "rival", "base")),
)
ACT = st.one_of(
    st.tuples(st.just("ask"), st.lists(ASK, min_size=1, max_size=5)),
    st.tuples(st.just("tick"), st.integers(1, 3)),
    st.tuples(st.just("cancel"), st.lists(st.integers(0, 40), max_size=4)),
    st.tuples(st.just("load"), st.sampled_from(("policy", "policy", "rival"))),
    st.tuples(st.just("drop"), st.just("rival")),
)


@pytest.mark.slow
# The fixture only makes rooms; every example has its own.
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(ACT, min_size=10, max_size=40),
    limits=st.fixed_dictionaries(
        {
            "max_rows": st.sampled_from((1, 2, 64)),
            "prefill_tokens": st.sampled_from((4, 4096)),
            "chunk_tokens": st.sampled_from((3, 512)),
            "cache_bytes": st.sampled_from((1, 100_000, 1 << 30)),
            "prefix_bytes": st.sampled_from((0, 1 << 30)),
        }
    ),
)
def test_accepted_is_answered_and_inside_after_every_act(
    room: Room, acts: list[tuple[str, Any]], limits: dict[str, Any]
) -> None:
    one = room("llama", **limits)
    submitted = 0
    for act, what in acts:
        if act == "ask":
            one.submit({submitted + index: request for index, request in enumerate(what)})
            submitted += len(what)
        elif act == "cancel":
            one.cancel(*what)
        elif act == "load":
            one.make_live(one.adapter(submitted % 3, name=what))
        elif act == "drop" and "rival" in one.engine.versions():
            one.engine.drop_adapter("rival").result()
        elif act == "tick":
            one.tick(what)
        engine = one.engine
        computed = [m for _, sequences, _ in engine._scheduler._rows.listed() for m in sequences]
        waiting = engine._scheduler.waiting
        queued = [m for held in waiting._all() for sequences in held.values() for m in sequences]
        assert {*queued, *computed} == engine._inside
        underway = waiting._underway
        for sequences in underway.waiting.values() if underway else ():
            computed += sequences
        assert set(engine._scheduler.budget._takers) == set(computed)
    for _ in range(3000):
        if not one.worker.tick():
            break
    assert sorted(one.answers) == list(range(submitted))
    for answers in one.answers.values():
        *pieces, result = answers
        assert all(isinstance(piece, Progress) for piece in pieces)
        assert isinstance(result, Generated | RequestError)
    stats = one.engine.stats()
    assert stats["requests_accepted_total"] == stats["requests_answered_total"] == submitted
    assert stats["requests_running"] == stats["reserved_cache_bytes"] == 0
