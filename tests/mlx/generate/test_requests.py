"""Every request is answered exactly once: served, refused, cancelled, failed or cut off."""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from legos.device.worker import ThreadWorker
from legos.errors import EngineError, RequestError
from legos.mlx.generate.engine import MlxEngine
from legos.records.limits import EngineLimits
from legos.records.request import Generated, Progress, Request, Result

Room = Callable[..., Any]
GOOD = Request(prompt_ids=(1, 2, 3), max_tokens=4, seed=1)


def sharers(count: int, max_tokens: int = 6) -> dict[int, Request]:
    """Requests that stay in one row to the end."""
    request = Request(prompt_ids=(1, 2, 3), max_tokens=max_tokens, seed=1)
    return dict.fromkeys(range(count), request)


def test_cancelled_before_it_is_taken_in(room: Room) -> None:
    one = room("llama")
    one.submit(sharers(3))
    one.cancel(1)
    one.finish()
    assert (one.answer(1).token_ids, one.answer(1).finish_reason) == ((), "cancelled")
    assert one.answer(0) == one.answer(2)
    assert len(one.answer(0).token_ids) == 6


def test_each_request_that_no_step_has_taken_in_waits(room: Room) -> None:
    one = room("llama")
    one.submit(sharers(7))
    one.cancel(1)
    one.engine.score([((1,), [(2,)])], end_ids=())
    assert one.engine.stats()["requests_waiting"] == 7
    one.finish()
    assert one.engine.stats()["requests_waiting"] == 0


def test_cancelled_while_it_waits_for_room(room: Room) -> None:
    one = room("llama", max_rows=1)
    one.submit({0: GOOD, 1: Request(prompt_ids=(9,), max_tokens=4), 2: GOOD})
    one.tick()
    one.submit({3: Request(prompt_ids=(9,), max_tokens=4)})
    one.tick()
    one.cancel(1)
    one.tick()
    assert one.answer(1).token_ids == ()
    one.finish()
    assert one.answer(0) == one.answer(2)
    (alone,) = room("llama").ask([Request(prompt_ids=(9,), max_tokens=4)])
    assert one.answer(3).token_ids == alone.token_ids


def test_cancelled_while_it_is_decoded(room: Room) -> None:
    one = room("llama")
    others = {n: Request(prompt_ids=(n,), max_tokens=6, seed=n) for n in range(10, 14)}
    expected = room("llama").ask([*sharers(3).values(), *others.values()])
    one.submit(sharers(3) | others)
    one.tick(3)
    one.cancel(1, 11)
    one.tick()
    for number, index in ((1, 1), (11, 4)):
        cancelled = one.answer(number)
        assert cancelled.token_ids == expected[index].token_ids[:3]
        assert cancelled.logprobs == pytest.approx(expected[index].logprobs[:3], abs=1e-5)
        assert cancelled.finish_reason == "cancelled"
    one.finish()
    for number, index in ((0, 0), (2, 2), (10, 3), (12, 5), (13, 6)):
        assert one.answer(number).token_ids == expected[index].token_ids
        assert one.answer(number).logprobs == pytest.approx(expected[index].logprobs, abs=1e-5)


def test_all_sharers_of_a_row_and_all_rows_cancelled(room: Room) -> None:
    one = room("llama")
    one.submit(sharers(3))
    one.tick(2)
    one.cancel(0, 1, 2)
    assert one.worker.tick() is False  # nothing is left to do
    assert [one.answer(n).finish_reason for n in range(3)] == ["cancelled"] * 3
    assert len(one.ask([GOOD])[0].token_ids) == 4


def test_cancelling_what_is_not_there(room: Room) -> None:
    one = room("llama")
    (done,) = one.ask([GOOD])
    one.cancel(0, 77)
    one.finish()
    assert one.answers == {0: [done]}


def test_only_ones_own_numbers_can_be_cancelled(room: Room) -> None:
    one, other = room("llama"), []
    one.submit(sharers(1))
    one.engine.submit([(0, GOOD)], other.extend)
    one.tick()
    one.cancel(0)
    one.finish()
    assert one.answer(0).finish_reason == "cancelled"
    assert [result.finish_reason for _, result in other] == ["length"]


def test_a_failing_step_is_told_to_all_and_the_engine_goes_on(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    one = room("llama", max_rows=2)
    ending = Request(prompt_ids=(8,), max_tokens=3, seed=1)
    one.submit(sharers(2) | {5: ending, 6: Request(prompt_ids=(9,), max_tokens=3)})
    one.tick()
    forward = one.engine._scheduler._forward
    broken = type("Broken", (), {"next_logits": lambda *_: 1 / 0, "model": forward.model})()
    one.engine._scheduler._forward = broken
    with caplog.at_level(logging.ERROR):
        one.tick()
    one.engine._scheduler._forward = forward
    for number in (0, 1, 5, 6):
        assert isinstance(one.error(number), EngineError)
        assert "a step of the engine failed: ZeroDivisionError" in str(one.error(number))
    assert "a step of the engine failed" in caplog.text
    assert one.worker.tick() is False
    assert one.ask([GOOD]) == room("llama").ask([GOOD])


def test_a_step_that_fails_half_way_answers_nobody_twice(room: Room) -> None:
    """What had ended before the failure is delivered; what was between places is not lost."""
    one = room("llama", prefill_tokens=4)
    ready = {n: Request(prompt_ids=(n,), max_tokens=1, seed=n) for n in range(4)}
    going = {n: Request(prompt_ids=(n, n), max_tokens=5, seed=n) for n in range(10, 14)}
    one.submit(ready | going)
    calls = 0
    draw = one.engine._scheduler.sampler.draw

    def fail_at_third(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError("no room")
        return draw(*args, **options)

    one.engine._scheduler.sampler.draw = fail_at_third
    one.tick(2)
    one.engine._scheduler.sampler.draw = draw
    one.finish()
    assert sorted(one.answers) == sorted(ready | going)
    served = [n for n in ready if isinstance(one.answers[n][0], Generated)]
    assert len(served) == 4
    assert all(isinstance(one.error(n), EngineError) for n in going)


def test_weights_that_give_no_numbers_are_an_error(room: Room) -> None:
    one = room("llama")
    one.engine.load_adapter(one.adapter(1, size=1e25)).result()
    one.submit({0: GOOD})
    one.finish()
    assert isinstance(one.error(0), RequestError)
    assert "logits are not numbers" in str(one.error(0))
    one.load(0)
    assert len(one.ask([GOOD])[0].token_ids) == 4


def test_weights_that_give_no_numbers_harm_no_later_request(room: Room) -> None:
    """Their keys and values are no numbers either, and a mask multiplies them by zero."""
    good = {
        0: Request(prompt_ids=tuple(range(3, 40)), max_tokens=30, seed=1),
        1: Request(prompt_ids=tuple(range(3, 60)), max_tokens=30, seed=2),
        2: Request(prompt_ids=(5, 6), max_tokens=9, seed=3),
    }
    expected = room("llama").ask(list(good.values()))
    one = room("llama")
    one.engine.load_adapter(one.adapter(1, name="bad", size=1e25)).result()
    one.submit({0: good[0]})
    one.tick(2)
    bad = Request(prompt_ids=(9, 8, 7), max_tokens=9, adapter="bad")
    one.submit({1: good[1], 3: bad})  # padded to the length of the other
    one.tick(2)
    assert isinstance(one.error(3), RequestError)
    one.submit({2: good[2]})
    one.finish()
    assert [one.answer(number).token_ids for number in good] == [e.token_ids for e in expected]


def test_a_receiver_that_fails_harms_nobody_else(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Sequence[tuple[int, Result]]) -> None:
        raise RuntimeError("the loop is closed")

    one = room("llama")
    one.engine.submit([(0, GOOD)], broken)
    one.submit({0: GOOD})
    one.engine.submit([(0, GOOD)], broken)
    one.finish()
    assert len(one.answer(0).token_ids) == 4
    assert "a receiver of results failed; the engine goes on" in caplog.text
    assert len(one.ask([GOOD])[0].token_ids) == 4


def test_what_waits_at_the_end_is_answered(room: Room) -> None:
    one = room("llama", max_rows=1)
    one.submit(sharers(2) | {3: Request(prompt_ids=(9,), max_tokens=4)})
    one.tick(2)
    one.submit({4: GOOD, 5: Request(prompt_ids=(), max_tokens=1)})
    one.cancel(0)
    one.engine.close()
    for number in (0, 1, 3, 4, 5):
        assert isinstance(one.error(number), EngineError)
        assert "the engine was closed" in str(one.error(number))
    assert one.worker.closed
    one.submit({6: GOOD})
    one.cancel(6)
    assert "the engine was closed" in str(one.error(6))
    one.engine.close()
    one.engine._inbox.append((one.deliver, [(7, GOOD)]))  # by a thread that is half-way in submit
    assert one.worker.tick() is False
    assert "the engine was closed" in str(one.error(7))


def test_at_the_end_a_receiver_that_fails_harms_nobody_else(room: Room) -> None:
    """Two submissions that no step has taken in; the first one's receiver has gone."""

    def broken(_: Sequence[tuple[int, Result]]) -> None:
        raise RuntimeError("the loop is closed")

    one = room("llama")
    one.engine.submit([(0, GOOD)], broken)
    one.submit({0: GOOD})
    one.engine.close()
    assert "the engine was closed" in str(one.error(0))
    assert one.worker.closed


def random_request(rng: random.Random) -> Request:
    start = tuple(range(40)) * (rng.random() < 0.2)
    prompt = start + tuple(rng.randrange(4) for _ in range(rng.randrange(4)))  # sometimes empty
    return Request(
        prompt_ids=prompt,
        max_tokens=rng.choice((1, 1, 3, 8)),
        seed=rng.randrange(5),
        temperature=rng.choice((0.0, 1.0)),
        adapter=rng.choice(("policy", "policy", "policy", "rival", "base", "nobody")),
        stream=rng.random() < 0.2,
        end_ids=tuple(rng.randrange(358) for _ in range(30)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))]
)
def test_a_storm_of_requests_cancellations_and_swaps(room: Room, seed: int) -> None:
    rng = random.Random(seed)
    one = room(
        "llama",
        max_rows=rng.choice((1, 4, 64)),
        prefill_tokens=rng.choice((4, 4096)),
        chunk_tokens=rng.choice((3, 512)),
        cache_bytes=rng.choice((1, 1 << 30)),
        prefix_bytes=rng.choice((0, 100_000, 1 << 30)),
    )
    cancelled: set[int] = set()
    number = 0
    while number < 200:
        action = rng.random()
        if action < 0.4:
            count = rng.randint(1, 12)
            one.submit({number + n: random_request(rng) for n in range(count)})
            number += count
        elif action < 0.6 and number:
            some = rng.sample(range(number), min(number, rng.randint(1, 5)))
            cancelled |= set(some)
            one.cancel(*some)
        elif action < 0.65:
            adapter = one.adapter(rng.randrange(3), name=rng.choice(("policy", "rival")))
            one.engine.load_adapter(adapter).result()
        elif action < 0.66 and "rival" in one.engine.versions():
            one.engine.drop_adapter("rival").result()
        else:
            one.tick(rng.randint(1, 3))
    one.finish()
    assert sorted(one.answers) == list(range(number))
    for n, answers in one.answers.items():
        *pieces, result = answers
        assert all(isinstance(piece, Progress) for piece in pieces)
        if pieces and isinstance(result, Generated):
            streamed = [token for piece in pieces for token in piece.token_ids]
            assert tuple(streamed) == result.token_ids
        if isinstance(result, Generated):
            assert len(result.logprobs) == len(result.versions) == len(result.token_ids)
            assert result.finish_reason != "cancelled" or n in cancelled
        else:
            assert isinstance(result, RequestError)
    assert not one.engine._inside
    assert not one.engine._scheduler
    stats = one.engine.stats()
    assert stats["reserved_cache_bytes"] == stats["requests_running"] == 0
    assert stats["requests_waiting"] == stats["rows_decoding"] == 0
    digests = {info.digest for info in one.engine.adapters().values()}  # one slot for equal weights
    assert len(one.engine._scheduler._slots._slots) == 1 + len(digests)


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_from_many_threads_and_a_sudden_end(
    tiny_models: Mapping[str, Path], room: Room, decode_ahead: Any, seed: int
) -> None:
    """Four threads ask and cancel while weights are swapped; then the engine closes."""
    prepared = room("llama")  # for its adapters alone
    import mlx.core as mx

    worker = ThreadWorker("legos-engine", mx.clear_streams)

    def build() -> MlxEngine:
        from legos.mlx.model.load import load_tree

        tree = load_tree(tiny_models["llama"])
        limits = EngineLimits(max_rows=8, decode_ahead=decode_ahead)
        return MlxEngine(worker, tree, num_vocabulary=358, context=1024, limits=limits)

    engine = worker.call(build).result()
    engine.load_adapter(prepared.adapter(0)).result()
    answers: list[list[tuple[int, Result]]] = [[] for _ in range(4)]

    def storm(thread: int) -> None:
        rng = random.Random(seed * 10 + thread)
        deliver = answers[thread].extend
        for number in range(0, 200, 5):
            engine.submit([(number + n, random_request(rng)) for n in range(5)], deliver)
            engine.cancel([rng.randrange(number + 5)], deliver)

    threads = [threading.Thread(target=storm, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for version in range(1, 4):
        assert engine.load_adapter(prepared.adapter(version)).result().version == version
    if seed:
        threads[0].join()  # at seed 0 the others are still asking when it ends
    if seed == 2:
        for thread in threads:
            thread.join()
    engine.close()
    for thread in threads:
        thread.join()
    for received in answers:
        ends = [number for number, result in received if not isinstance(result, Progress)]
        assert sorted(ends) == list(range(200))
        assert all(
            isinstance(result, Generated | Progress | RequestError | EngineError)
            for _, result in received
        )
