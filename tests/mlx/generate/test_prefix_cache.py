"""The prefix cache: what is computed once stays computed, and never under other weights."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache
from msgspec.structs import replace

from legos.mlx.generate import prefix_cache
from legos.mlx.generate.prefix_cache import PrefixCache
from legos.mlx.generate.slot_cache import SlotCache
from legos.records.request import Request

LONG = tuple(5 + (7 * n) % 90 for n in range(100))


def computed(one: Any) -> int:
    return int(one.engine.stats()["prefill_tokens_total"])


def reused(one: Any) -> int:
    return int(one.engine.stats()["prefix_tokens_total"])


@pytest.mark.parametrize("model", ["llama", pytest.param("qwen3", marks=pytest.mark.nightly)])
def test_a_conversation_computes_only_what_is_new(room: Callable[..., Any], model: str) -> None:
    one, plain = room(model), room(model, prefix_bytes=0)
    tokens, new = LONG, len(LONG)
    for turn in range(5):
        request = Request(prompt_ids=tokens, max_tokens=20, seed=turn)
        (answer,) = one.ask([request])
        (expected,) = plain.ask([request])
        assert answer.token_ids == expected.token_ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        tokens = tokens + answer.token_ids + LONG[: 10 + turn]
        new += 1 + 10 + turn
    # of every answer only the last token is not in the cache
    assert computed(one) == new - 1 - 14
    assert computed(plain) > 4 * computed(one) / 2
    assert reused(plain) == 0


def test_samples_of_one_prompt_are_prefilled_once(room: Callable[..., Any]) -> None:
    one = room("llama")
    group = [Request(prompt_ids=LONG, max_tokens=5, seed=n) for n in range(8)]
    together = one.ask(group)
    assert computed(one) == len(LONG)
    late = one.ask([replace(group[0], seed=99)])
    assert computed(one) == len(LONG) + 1  # an exact hit computes its last token
    alone = [room("llama").ask([request])[0] for request in (*group, replace(group[0], seed=99))]
    for shared, single in zip((*together, *late), alone, strict=True):
        assert shared.token_ids == single.token_ids
        assert shared.logprobs == pytest.approx(single.logprobs, abs=1e-5)


def test_another_end_of_a_known_prompt_starts_where_they_part(room: Callable[..., Any]) -> None:
    one = room("llama")
    one.ask([Request(prompt_ids=LONG, max_tokens=3)])
    before = computed(one)
    other = Request(prompt_ids=(*LONG[:70], 3, 4, 5), max_tokens=6, seed=1)
    (answer,) = one.ask([other])
    assert computed(one) == before + 3
    (expected,) = room("llama", prefix_bytes=0).ask([other])
    assert answer.token_ids == expected.token_ids
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_other_weights_know_nothing(room: Callable[..., Any]) -> None:
    one = room("llama")
    request = Request(prompt_ids=LONG, max_tokens=4, seed=2)
    one.ask([request])
    one.engine.load_adapter(one.adapter(3, name="rival")).result()
    (rival,) = one.ask([replace(request, adapter="rival")])
    assert computed(one) == 2 * len(LONG)
    one.load(5)
    (after,) = one.ask([request])
    assert computed(one) == 3 * len(LONG)
    fresh = room("llama", prefix_bytes=0)
    fresh.load(5)
    assert after == fresh.ask([request])[0]
    assert rival.logprobs != after.logprobs


def test_a_row_that_saw_a_switch_is_not_kept(room: Callable[..., Any]) -> None:
    one = room("llama")
    one.submit({0: Request(prompt_ids=LONG, max_tokens=10, seed=1)})
    one.tick(4)
    one.load(1)
    one.finish()
    assert one.engine.stats()["prefix_entries"] == 0
    said = LONG + one.answer(0).token_ids
    (answer,) = one.ask([Request(prompt_ids=said, max_tokens=3, seed=5)])
    fresh = room("llama", prefix_bytes=0)
    fresh.load(1)
    assert answer == fresh.ask([Request(prompt_ids=said, max_tokens=3, seed=5)])[0]


def test_nor_is_one_that_saw_other_weights_in_between(room: Callable[..., Any]) -> None:
    """A snapshot keeps the epoch of weights to which the policy returns."""
    one = room("llama")
    one.load(1)
    one.make_live(one.adapter(1, name="snapshot"))
    one.submit({0: Request(prompt_ids=LONG, max_tokens=12, seed=1)})
    for version in (2, 1):
        one.tick(4)
        one.load(version)
    one.finish()
    assert one.answer(0).versions == (1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1)
    said = Request(prompt_ids=LONG + one.answer(0).token_ids, max_tokens=3, seed=5)
    (answer,) = one.ask([said])
    fresh = room("llama", prefix_bytes=0)
    fresh.load(1)
    (expected,) = fresh.ask([said])
    assert answer.token_ids == expected.token_ids
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_a_prefill_ends_with_the_weights_it_began_with(room: Callable[..., Any]) -> None:
    one = room("llama", chunk_tokens=8, prefill_tokens=128)
    one.submit({0: Request(prompt_ids=(1, 2), max_tokens=50, seed=1)})
    one.tick(2)
    request = Request(prompt_ids=LONG, max_tokens=3, seed=2)
    one.submit({1: request})
    one.tick(4)  # a third of the prompt is in
    assert 1 not in one.answers
    one.load(1)
    one.finish()
    (expected,) = room("llama", prefix_bytes=0).ask([request])
    assert one.answer(1).versions == (0, 1, 1)
    assert one.answer(1).token_ids[0] == expected.token_ids[0]
    assert one.answer(1).logprobs[0] == pytest.approx(expected.logprobs[0], abs=1e-5)
    assert len(one.engine._scheduler._slots._slots) == 2  # the base and the policy
    (again,) = one.ask([request])  # no prefix of it was kept
    fresh = room("llama", prefix_bytes=0)
    fresh.load(1)
    (expected,) = fresh.ask([request])
    assert again.token_ids == expected.token_ids
    assert again.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_decoding_goes_on_while_a_long_prompt_comes_in(room: Callable[..., Any]) -> None:
    one = room("llama", chunk_tokens=10, prefill_tokens=1000)
    one.submit({0: Request(prompt_ids=(1, 2), max_tokens=30, seed=1)})
    one.tick()
    one.submit({1: Request(prompt_ids=LONG, max_tokens=2, seed=1)})
    one.tick(6)
    (sequence,) = (m for m in one.engine._inside if m.number == 0)
    assert len(sequence.tokens) == 7
    one.finish()
    alone = room("llama")
    assert (
        one.answer(1).token_ids
        == alone.ask([Request(prompt_ids=LONG, max_tokens=2, seed=1)])[0].token_ids
    )


def test_nor_does_it_wait_for_a_long_prompt_of_which_one_token_is_asked(
    room: Callable[..., Any],
) -> None:
    one = room("llama", chunk_tokens=10, prefill_tokens=1000)
    request = Request(prompt_ids=LONG, max_tokens=1, seed=1)
    one.submit({0: Request(prompt_ids=(1, 2), max_tokens=30, seed=1)})
    one.tick()
    one.submit({1: request})
    one.tick(6)
    (sequence,) = (m for m in one.engine._inside if m.number == 0)
    assert len(sequence.tokens) == 7
    assert 1 not in one.answers
    one.finish()
    (expected,) = room("llama").ask([request])
    assert one.answer(1).token_ids == expected.token_ids
    assert one.answer(1).logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    before = computed(one)
    one.ask([Request(prompt_ids=(*LONG, 3, 4), max_tokens=1)])
    assert computed(one) == before + 2


def test_a_short_prompt_does_not_wait_for_a_long_one(room: Callable[..., Any]) -> None:
    """And the long one comes in while short ones keep coming."""
    one = room("llama", chunk_tokens=10, prefill_tokens=10)
    long = Request(prompt_ids=LONG, max_tokens=3, seed=1)
    short = {n: Request(prompt_ids=(n, 5, 6), max_tokens=3, seed=n) for n in range(1, 31)}
    one.submit({0: long})
    one.tick(2)
    for number in range(1, 31):
        one.submit({number: short[number]})
        one.tick()
        if number == 6:
            assert 0 not in one.answers
            assert {1, 2} <= set(one.answers)
    assert 0 in one.answers
    one.finish()
    alone = room("llama", prefix_bytes=0)
    for number, request in {0: long, **short}.items():
        (expected,) = alone.ask([request])
        assert one.answer(number).token_ids == expected.token_ids
        assert one.answer(number).logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_what_a_swap_makes_useless_is_freed(room: Callable[..., Any]) -> None:
    one = room("llama")
    one.ask([Request(prompt_ids=(n, *LONG), max_tokens=2) for n in range(30)])
    one.submit({100: Request(prompt_ids=(1, 2), max_tokens=60, seed=1)})
    one.tick()
    assert one.engine.stats()["prefix_entries"] == 30
    one.load(5)
    assert one.engine.stats()["prefix_entries"] == one.engine.stats()["prefix_bytes"] == 0
    one.submit({101: Request(prompt_ids=(7, *LONG), max_tokens=2)})
    one.finish()
    assert computed(one) == 30 * 101 + 2 + 101


def test_the_budget_of_bytes_holds_and_the_oldest_go(room: Callable[..., Any]) -> None:
    one = room("llama", prefix_bytes=60_000)
    for n in range(12):
        one.ask([Request(prompt_ids=(n, *LONG), max_tokens=2)])
    stats = one.engine.stats()
    assert 0 < stats["prefix_bytes"] <= 60_000
    assert 0 < stats["prefix_entries"] < 12
    before = computed(one)
    one.ask([Request(prompt_ids=(11, *LONG), max_tokens=2, seed=1)])
    assert computed(one) == before + 1
    one.ask([Request(prompt_ids=(0, *LONG), max_tokens=2, seed=1)])
    assert computed(one) == before + 1 + 101


def test_a_row_that_is_larger_than_the_whole_cache_is_not_copied(
    room: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    token_bytes = room("llama").engine.capabilities.sizes.token_bytes
    lengths: list[int] = []
    extract = SlotCache.extract

    def extracted(cache: SlotCache, row: int) -> KVCache:
        found = extract(cache, row)
        lengths.append(found.offset)
        return found

    monkeypatch.setattr(SlotCache, "extract", extracted)
    one = room("llama", prefix_bytes=101 * token_bytes)
    one.ask([Request(prompt_ids=LONG, max_tokens=20)])  # the answer ends beyond it
    one.ask([Request(prompt_ids=(*LONG, *LONG[:20]), max_tokens=2)])
    assert set(lengths) == {len(LONG)}
    assert one.engine.stats()["prefix_entries"] == 1


def test_a_row_that_cannot_be_trimmed_is_found_by_prompts_that_continue_it() -> None:
    state: Any = ArraysCache(1)
    state[0] = mx.zeros(10)  # 40 bytes
    prefixes = PrefixCache(6 * 40)
    ends = {
        64: LONG[:64],
        70: LONG[:70],
        71: (*LONG[:70], 3),
        72: (*LONG[:70], 4, 4),
        99: LONG[:99],
    }
    for tokens in ends.values():
        prefixes.add(0, tokens, [state])

    def found(tokens: tuple[int, ...], epoch: int = 0) -> int | None:
        hit = prefixes.find(epoch, tokens)
        return None if hit is None else hit[1]

    for length, tokens in ends.items():
        assert found((*tokens, 1)) == length
    assert found(LONG[:99]) == 70  # its own last token is to be computed
    assert found((*LONG[:69], 1, 1)) == 64
    assert found(LONG[:64]) is None
    assert found(LONG, epoch=1) is None
    prefixes.keep_only([1])
    assert (len(prefixes), prefixes.num_bytes, found(LONG)) == (0, 0, None)
    assert prefixes._whole == {}


def test_few_answers_are_copied_where_no_prompt_continues_them(
    room: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "PATIENCE", 4)
    copies: list[int | None] = []
    add = PrefixCache.add

    def counted(cache: PrefixCache, *args: Any, answer: int | None = None) -> None:
        copies.append(answer)
        add(cache, *args, answer=answer)

    monkeypatch.setattr(PrefixCache, "add", counted)
    one = room("llama")
    asked = [Request(prompt_ids=(n + 5, *LONG), max_tokens=4, seed=n) for n in range(37)]
    answers = one.ask(asked)
    assert sum(answer is not None for answer in copies) == 4 + 2  # and the 16th and the 32nd
    assert copies.count(None) == 37  # prompts, for other samples of them
    going_on = (*asked[0].prompt_ids, *answers[0].token_ids, 9)
    one.ask([Request(prompt_ids=going_on, max_tokens=2)])
    copies.clear()
    one.ask([replace(request, prompt_ids=(*request.prompt_ids, 7)) for request in asked[:3]])
    assert sum(answer is not None for answer in copies) == 3
