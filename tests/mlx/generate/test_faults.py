"""Errors of the device during a step of the engine."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from legos.errors import DeviceError
from legos.mlx.generate import scheduler
from legos.mlx.generate.multi_lora import slots
from legos.mlx.generate.sampling.sampler import Sampler
from legos.records.request import Generated, Request

Room = Callable[..., Any]
FAULT = "[METAL] Command buffer execution failed: Insufficient Memory (OutOfMemory)"


@pytest.mark.parametrize(
    "number", [1, 5, *(pytest.param(each, marks=pytest.mark.nightly) for each in (3, 7, 9, 11))]
)
@pytest.mark.parametrize("kind", ["llama", "wide"])
def test_after_a_fault_of_the_device_requests_start_again(
    room: Room, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """The evaluation at which a late error is raised changes no token."""
    long = tuple(range(3, 80))
    requests = [
        Request(prompt_ids=(*long, n % 3), max_tokens=n, seed=n, raw_logprobs=n % 2 == 0)
        for n in range(1, 9)
    ]
    expected = room(kind).ask(requests)
    one = room(kind, prefill_tokens=200)
    evaluate, calls = mx.eval, [0]

    def fail(*arrays: Any) -> None:
        evaluate(*arrays)
        calls[0] += 1
        if calls[0] == number:
            raise RuntimeError(FAULT)

    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", fail)
        found = one.ask(requests)
    assert calls[0] > number
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]
    assert [len(a.raw_logprobs or ()) for a in found] == [
        len(a.raw_logprobs or ()) for a in expected
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
    assert one.engine.stats()["reserved_cache_bytes"] == 0


def test_a_device_that_keeps_failing_is_explained(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, short = room("llama"), Request(prompt_ids=(5,), max_tokens=4)
    evaluate = mx.eval

    def fail(*arrays: Any) -> None:
        raise RuntimeError(FAULT)

    monkeypatch.setattr(mx, "eval", fail)
    one.submit({0: Request(prompt_ids=tuple(range(3, 80)), max_tokens=4)})
    one.finish()
    assert "the GPU ran out of memory; lower training.memory_limit_gib" in str(one.error(0))
    monkeypatch.setattr(mx, "eval", evaluate)
    assert one.ask([short]) == room("llama").ask([short])


def test_a_fault_ends_a_score_with_what_to_do(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``DeviceError``, so that a run starts itself again in a new process."""
    one, prompts = room("llama"), [((4,) * 20, [(5, 6)])]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(FAULT)

    with monkeypatch.context() as patch:
        patch.setattr(one.engine._scheduler.scores._forward, "trunk", fail)
        scores = one.engine.score(prompts, end_ids=(2,))
        one.finish()
    with pytest.raises(DeviceError, match="the GPU ran out of memory; lower"):
        scores.result(timeout=0)


def test_a_fault_ends_a_swap_with_what_to_do(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    one = room("llama")

    def fail(_: mx.array) -> None:
        raise RuntimeError(FAULT)

    with monkeypatch.context() as patch:
        patch.setattr(slots, "_on_host", fail)
        swap = one.engine.load_adapter(one.adapter(1))
    with pytest.raises(DeviceError, match="the GPU ran out of memory; lower"):
        swap.result(timeout=0)
    assert one.engine.versions() == {"policy": 0}


def test_the_display_interrupts_a_long_answer_many_times(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts again as often as it has got further; the KV cache is halved for a while only."""
    monkeypatch.setattr(scheduler, "RECOVERY", 8)
    request = Request(prompt_ids=tuple(range(3, 80)), max_tokens=60, seed=1)
    (expected,) = room("llama").ask([request])
    one = room("llama")
    limit = one.engine._scheduler.budget.limit
    draw, calls, limits = Sampler.draw, [0], set[int]()

    def fail(*given: Any, **unread: int) -> Any:
        calls[0] += 1
        limits.add(one.engine._scheduler.budget.limit)
        if calls[0] in {9, 18, 27}:
            raise RuntimeError(FAULT)
        return draw(*given, **unread)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "draw", fail)
        (found,) = one.ask([request])
    assert isinstance(found, Generated)
    assert found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert calls[0] > 27
    assert min(limits) <= limit // 2
    one.ask([request])
    assert one.engine._scheduler.budget.limit == limit
