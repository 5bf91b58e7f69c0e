"""A step that is launched before the last one is read gives what steps read at once give."""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from conftest import EngineRoom

from legos.errors import RequestError
from legos.mlx.generate.sampling.sampler import Sampler
from legos.records.choices import choice_tree
from legos.records.message import Filters
from legos.records.request import Generated, Progress, Request

Room = Callable[..., EngineRoom]
VOCABULARY = {"llama": 358, "wide": 5000}
FAULT = "[METAL] Command buffer execution failed: Insufficient Memory (OutOfMemory)"


@pytest.fixture
def decode_ahead() -> str:
    """The tests choose for themselves."""
    return "on"


def read_at_once(room: Room, model: str = "llama", **limits: Any) -> EngineRoom:
    """An engine that samples on the device too, and reads every step before the next one."""
    one = room(model, decode_ahead="off", **limits)
    one.engine._scheduler.sampler = Sampler(VOCABULARY[model], xp=mx)
    return one


def unread(one: EngineRoom) -> bool:
    return one.engine._scheduler._unread is not None


def recorded(one: EngineRoom) -> list[str]:
    """What the sampler of an engine does from now on, in order."""
    events: list[str] = []
    sampler: Any = one.engine._scheduler.sampler
    draw, read = sampler.draw, sampler.read

    def drawn(*args: Any, **options: Any) -> Any:
        events.append("launch")
        return draw(*args, **options)

    def was_read(*args: Any) -> Any:
        events.append("read")
        return read(*args)

    sampler.draw, sampler.read = drawn, was_read
    return events


def test_the_next_step_is_launched_before_the_last_one_is_read(room: Room) -> None:
    ahead, at_once = room("llama"), read_at_once(room)
    logs = [recorded(ahead), recorded(at_once)]
    request = Request(prompt_ids=(1, 2), max_tokens=5, seed=1)
    assert ahead.ask([request]) == at_once.ask([request])
    first, step = ["launch", "read"], ["launch"]
    # The prefill is read at once, and so is the step of which all know that it is the last.
    assert logs[0] == [*first, *step, *first, *first, *first, "read"]
    assert logs[1] == 5 * first


def test_steps_are_launched_ahead_while_what_waits_cannot_start(room: Room) -> None:
    rooms = [room("llama", max_rows=2), read_at_once(room, max_rows=2)]
    requests = {n: Request(prompt_ids=(3 + n, 4), max_tokens=12 + n, seed=n) for n in range(5)}
    ahead = 0
    for one in rooms:
        one.submit(requests)
        while one.worker.tick():
            ahead += unread(one) and bool(one.engine._scheduler.waiting)
    assert ahead > 20
    found, expected = ([plain(one.answer(n)) for n in requests] for one in rooms)
    assert found == expected


def test_small_vocabularies_and_processors_read_at_once(room: Room) -> None:
    for model in VOCABULARY:
        scheduler = room(model, decode_ahead="auto").engine._scheduler
        on_gpu = mx.default_device().type == mx.DeviceType.gpu
        assert scheduler._ahead == (on_gpu and model == "wide")


def some_requests(rng: random.Random, vocabulary: int) -> list[Request]:
    """Mostly requests that can be computed ahead; they end by tokens, stop tests and lengths."""
    kinds: list[dict[str, Any]] = [
        {},
        {},
        {"temperature": 0.0},
        {"filters": Filters(top_p=0.9, top_k=50, logit_bias=((7, 2.0),))},
        {"raw_logprobs": True},
        {"stops": lambda tokens: sum(tokens) % 23 == 0},
    ]
    if rng.random() < 0.1:
        kinds = [
            {"filters": Filters(repetition_penalty=1.2)},
            {"raw_logprobs": True, "temperature": 0.7},
            {"num_alternatives": 3},
            {"choices": choice_tree([(5, 6), (7,)], end_ids=(2,)), "restrict": True},
        ]
    prompts = [tuple(range(3, 80)), (9, 8), tuple(rng.sample(range(300), 5))]
    return [
        Request(
            prompt_ids=rng.choice(prompts),
            max_tokens=rng.choice((2, 9, 60, 60)),
            seed=rng.getrandbits(32),
            end_ids=tuple(rng.sample(range(vocabulary), vocabulary // 40)),
            stream=rng.random() < 0.5,
            adapter=rng.choice(("policy", "policy", "rival", "base")),
            **rng.choice(kinds),
        )
        for _ in range(rng.choice((1, 2, 5)))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", list(VOCABULARY))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_swaps_stops_and_cancels_change_nothing(room: Room, model: str, seed: int) -> None:
    rng = random.Random(seed)
    rooms = [room(model), read_at_once(room, model)]
    for one in rooms:
        one.engine.load_adapter(one.adapter(1, name="rival")).result()
    submitted, ahead = 0, 0
    for step in range(40):
        act = rng.choice(("ask", "cancel", "load", "tick", "tick", "tick"))
        requests = some_requests(rng, VOCABULARY[model])
        cancelled, ticks = rng.sample(range(50), 8), rng.choice((1, 2, 9))
        for one in rooms:
            if act == "ask":
                one.submit(dict(enumerate(requests, submitted)))
            elif act == "cancel":
                one.cancel(*cancelled)
            elif act == "load":
                name = "rival" if step % 3 == 0 else "policy"
                one.engine.load_adapter(one.adapter(step, name=name)).result()
            for _ in range(ticks):
                one.tick()
                ahead += unread(one)
        submitted += len(requests) if act == "ask" else 0
    for one in rooms:
        one.finish()
    assert ahead > 30  # or nothing was tested
    found, expected = (tidy(one, submitted) for one in rooms)
    assert [plain(one) for one in found] == [plain(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.raw_logprobs == pytest.approx(other.raw_logprobs, abs=1e-5)
    stats, others = (one.engine.stats() for one in rooms)
    for name in ("tokens_generated_total", "prompt_tokens_total", "requests_answered_total"):
        assert stats[name] == others[name]
    assert stats["reserved_cache_bytes"] == stats["requests_running"] == 0
    sampled = sum(len(one.token_ids) for one in found)
    assert stats["tokens_generated_total"] == sampled
    ended = sum(one.finish_reason == "stop" for one in found)
    assert stats["rows_computed_total"] <= others["rows_computed_total"] + ended


def tidy(one: EngineRoom, count: int) -> list[Generated]:
    """The result of every request; what was streamed before must be its tokens."""
    results: list[Generated] = []
    for number in range(count):
        *parts, result = one.answers[number]
        assert isinstance(result, Generated), result
        streamed = [part for part in parts if isinstance(part, Progress)]
        assert len(streamed) == len(parts)
        tokens = tuple(token for part in streamed for token in part.token_ids)
        assert tokens == result.token_ids[: len(tokens)]
        results.append(result)
    return results


def plain(one: Generated) -> tuple[Any, ...]:
    kinds = tuple(tuple(token for token, _ in pairs) for pairs in one.alternatives)
    return one.token_ids, one.versions, one.finish_reason, one.legal, kinds


@pytest.mark.parametrize(
    "fields",
    [
        {"filters": Filters(presence_penalty=0.5)},
        {"num_alternatives": 2},
        {"raw_logprobs": True, "temperature": 0.5},
        {"choices": choice_tree([(5, 6, 7, 8), (7, 8, 9, 9)], end_ids=(2,)), "restrict": True},
    ],
)
def test_what_needs_the_host_is_read_at_once(room: Room, fields: dict[str, Any]) -> None:
    one = room("llama")
    one.submit({0: Request(prompt_ids=(1,), max_tokens=50, seed=3)})
    one.tick(2)
    assert unread(one)
    one.submit({1: Request(prompt_ids=(2,), max_tokens=3, seed=3, **fields)})
    for _ in range(3):
        one.tick()
        assert not unread(one)
    assert 1 in one.answers
    one.tick(2)
    assert unread(one)


def test_the_token_after_an_end_is_never_seen(room: Room) -> None:
    one = room("llama")
    free = one.ask([Request(prompt_ids=(4, 4), max_tokens=10, seed=3)])[0].token_ids
    before, rows = (
        one.engine.stats()["tokens_generated_total"],
        one.engine.stats()["rows_computed_total"],
    )
    log = recorded(one)
    ends = Request(prompt_ids=(4, 4), max_tokens=10, seed=3, end_ids=(free[4],), stream=True)
    one.submit({5: ends, 6: Request(prompt_ids=(5, 4), max_tokens=10, seed=4)})
    one.finish()
    *parts, result = one.answers[5]
    assert isinstance(result, Generated)
    assert result.token_ids == free[:5]
    assert [len(part.token_ids) for part in parts if isinstance(part, Progress)] == [1] * 5
    assert one.engine.stats()["tokens_generated_total"] == before + 5 + 10
    assert one.engine.tokens_generated("policy").result() == 10 + 5 + 10
    assert (
        one.engine.stats()["rows_computed_total"] == rows + 5 + 10 + 1
    )  # one row was computed in vain
    assert log.count("launch") == log.count("read")


def test_an_ended_row_is_kept_with_its_last_token(room: Room) -> None:
    """The step that was launched after the end has put the last token into the cache."""
    one, prompt = room("llama"), tuple(range(3, 80))
    free = one.ask([Request(prompt_ids=prompt, max_tokens=9, seed=1)])[0].token_ids
    one = room("llama")
    ends = Request(prompt_ids=prompt, max_tokens=20, seed=1, end_ids=(free[6],))
    assert one.ask([ends])[0].token_ids == free[:7]
    before = one.engine.stats()["prefill_tokens_total"]
    again = Request(prompt_ids=(*prompt, *free[:7], 5, 6), max_tokens=5, seed=2)
    (answer,) = one.ask([again])
    assert one.engine.stats()["prefill_tokens_total"] == before + 2
    (expected,) = room("llama", prefix_bytes=0).ask([again])
    assert answer.token_ids == expected.token_ids
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_a_fault_while_a_swap_waits_for_a_step_loses_nothing(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = room("llama")
    requests = {n: Request(prompt_ids=(1, n), max_tokens=6, seed=n) for n in range(4)}
    one.submit(requests)
    one.tick(3)
    assert unread(one)

    def fail(*arrays: Any) -> None:
        raise RuntimeError(FAULT)

    with monkeypatch.context() as patch:
        patch.setattr(one.engine._scheduler.sampler, "read", fail)
        one.load(7)
    one.finish()
    for number, request in requests.items():
        answer = one.answer(number)
        assert answer.versions == (0, 0, 7, 7, 7, 7)
        assert len(answer.logprobs) == request.max_tokens


def test_a_row_of_no_numbers_fails_alone_and_once(room: Room) -> None:
    """Its step after the failure is dropped too."""
    one = room("llama")
    bad = one.adapter(1, name="bad")
    one.engine.load_adapter(one.adapter(1, name="bad")).result()
    one.submit(
        {
            0: Request(prompt_ids=(1, 2), max_tokens=8, seed=1),
            1: Request(prompt_ids=tuple(range(3, 80)), max_tokens=8, seed=2, adapter="bad"),
        }
    )
    one.tick(3)
    assert unread(one)
    large = {name: np.full_like(array, 1e25) for name, array in bad.arrays.items()}
    one.engine.load_adapter(type(bad)(name="bad", version=2, shape=bad.shape, arrays=large))
    one.finish()
    assert isinstance(one.error(1), RequestError)
    (alone,) = room("llama").ask([Request(prompt_ids=(1, 2), max_tokens=8, seed=1)])
    assert one.answer(0).token_ids == alone.token_ids
    assert one.answer(0).logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert one.engine.stats()["tokens_generated_total"] == 8 + 3
    assert one.engine.stats()["prefix_entries"] <= 1  # the prompt's, and none of the bad row


@pytest.mark.slow
def test_the_same_acts_repeat_bit_for_bit(room: Room) -> None:
    answers: list[list[Generated]] = []
    for _ in range(2):
        rng, one = random.Random(5), room("wide")
        one.engine.load_adapter(one.adapter(1, name="rival")).result()
        count = 0
        for step in range(10):
            requests = some_requests(rng, VOCABULARY["wide"])
            one.submit(dict(enumerate(requests, count)))
            count += len(requests)
            one.tick(3)
            one.load(step)
        one.finish()
        answers.append(tidy(one, count))
    assert answers[0] == answers[1]
