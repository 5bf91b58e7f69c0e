"""Weights that change while tokens are sampled: every token is of the version that it names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from legos.errors import AdapterError, RequestError
from legos.records.request import Request

PROMPT = (5, 6, 7)


def chosen_logprob(tree: Any, parts: Sequence[tuple[Callable[[], None], Sequence[int]]]) -> Any:
    """[V] log-probabilities after tokens that go through the model part by part.

    Each part is computed after its weights are loaded; keys and values stay as they were.
    """
    cache = make_prompt_cache(tree)
    logits = None
    for load, tokens in parts:
        load()
        logits = tree(mx.array([list(tokens)]), cache=cache)[0, -1]
    assert logits is not None
    return np.array(logits - mx.logsumexp(logits))


@pytest.mark.parametrize(
    "model", ["llama", pytest.param("qwen3", marks=pytest.mark.nightly), "wide"]
)
def test_tokens_after_a_swap_come_from_the_new_weights(
    room: Callable[..., Any], model: str
) -> None:
    one = room(model)
    one.submit({0: Request(prompt_ids=PROMPT, max_tokens=6, seed=1)})
    one.tick(3)  # a prefill and two more tokens
    one.load(7)
    one.finish()
    generated = one.answer(0)
    assert generated.versions == (0, 0, 0, 7, 7, 7)
    tokens = generated.token_ids

    def old() -> None:
        one.load(0)

    def new() -> None:
        one.load(7)

    for place in range(6):
        seen = PROMPT + tokens[:place]
        parts = [(old, seen)]
        if place >= 3:  # what had gone through the model before the swap stays as it was
            parts = [(old, seen[:5]), (new, seen[5:])]
        expected = chosen_logprob(one.tree, parts)[tokens[place]]
        assert generated.logprobs[place] == pytest.approx(expected, abs=1e-5)
    stale = chosen_logprob(one.tree, [(old, PROMPT + tokens[:3])])[tokens[3]]
    assert abs(stale - generated.logprobs[3]) > 1e-3


def next_logprobs(tree: Any, tokens: Sequence[int], temperature: float) -> Any:
    logits = np.array(tree(mx.array([list(tokens)]))[0, -1]) / temperature
    logits -= logits.max()
    return logits - np.log(np.exp(logits).sum())


def test_a_fresh_request_learns_nothing_from_rows_that_saw_the_swap(
    room: Callable[..., Any],
) -> None:
    """Rows of equal tokens whose keys and values are of different weights are not one row."""
    one, heat = room("llama"), 0.2
    old = {n: Request(prompt_ids=PROMPT, max_tokens=3, temperature=heat, seed=n) for n in range(30)}
    one.submit(old)
    one.tick()
    start = one.adapter(0)
    nearby = {name: 1.1 * array for name, array in start.arrays.items()}
    one.make_live(replace(start, version=1, arrays=nearby))
    fresh = {n + 100: request for n, request in old.items()}
    one.submit(fresh)
    one.finish()
    begun = {one.answer(n).token_ids[0] for n in old}
    met = 0
    for number in fresh:
        generated = one.answer(number)
        assert generated.versions == (1, 1, 1)
        met += generated.token_ids[0] in begun
        for place, token in enumerate(generated.token_ids):
            seen = PROMPT + generated.token_ids[:place]
            expected = next_logprobs(one.tree, seen, heat)[token]
            assert generated.logprobs[place] == pytest.approx(expected, abs=1e-5)
    assert met > 5  # or nothing was tested
    # Nor is the last distribution of such a row remembered for a prompt of the same tokens.
    for number in list(old)[:10]:
        seen = PROMPT + one.answer(number).token_ids[:2]
        (again,) = one.ask([Request(prompt_ids=seen, max_tokens=1, temperature=heat, seed=1)])
        expected = next_logprobs(one.tree, seen, heat)[again.token_ids[0]]
        assert again.logprobs[0] == pytest.approx(expected, abs=1e-5)


def test_an_adapter_that_does_not_fit_leaves_what_was_live(room: Callable[..., Any]) -> None:
    one = room("llama")
    before = one.ask([Request(prompt_ids=PROMPT, max_tokens=1, seed=1)])
    short = one.adapter(1)
    del short.arrays[next(iter(short.arrays))]
    bad = one.adapter(2)
    name = next(iter(bad.arrays))
    bad.arrays[name][0, 0] = np.nan
    for adapter, message in ((short, "lacks"), (bad, "not finite")):
        with pytest.raises(AdapterError, match=message):
            one.engine.load_adapter(adapter).result()
    assert one.engine.versions() == {"policy": 0}
    assert one.ask([Request(prompt_ids=PROMPT, max_tokens=1, seed=1)]) == before


def test_several_adapters_speak_side_by_side(room: Callable[..., Any]) -> None:
    """Every row is what it is alone, whoever else is in the batch."""
    one = room("llama")
    one.engine.load_adapter(one.adapter(4, name="rival")).result()
    assert one.engine.versions() == {"policy": 0, "rival": 4}
    names = ("policy", "rival", "base", "rival@4")
    requests = [
        Request(prompt_ids=PROMPT[: 2 + n % 3], max_tokens=1 + n % 4, seed=n, adapter=name)
        for n in range(12)
        for name in names
    ]
    together = one.ask(requests)
    for batched, request in zip(together, requests, strict=True):
        (alone,) = one.ask([request])
        assert (batched.token_ids, batched.versions) == (alone.token_ids, alone.versions)
        assert batched.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert {generated.versions[0] for generated in together} == {0, 4}
    spoken = {
        name: [*chain.from_iterable(g.logprobs for g in together[n::4])]
        for n, name in enumerate(names)
    }
    assert spoken["rival"] == pytest.approx(spoken["rival@4"], abs=1e-5)  # rounded by rows
    assert spoken["rival"] != spoken["policy"] != spoken["base"] != spoken["rival"]


def test_equal_weights_under_two_names_are_computed_once(room: Callable[..., Any]) -> None:
    """A snapshot of the policy costs nothing until the policy's weights change."""
    one = room("llama", decode_ahead="off")  # distributions are cached where the host samples
    one.load(1)
    (alone,) = one.ask([Request(prompt_ids=PROMPT, max_tokens=1, seed=1)])
    prompts = [(*PROMPT, n) for n in range(10)]

    def ask() -> tuple[float, list[Any]]:
        """Rows that the same prompts need under both names; what is sampled."""
        before = one.engine.stats()["rows_computed_total"]
        names = ("policy", "policy-1")
        requests = [
            Request(prompt_ids=p, max_tokens=1, seed=1, adapter=n) for p in prompts for n in names
        ]
        answers = one.ask(requests)
        return one.engine.stats()["rows_computed_total"] - before, answers

    one.make_live(one.adapter(1, name="policy-1"))
    rows, answers = ask()
    assert rows == len(prompts)
    assert answers[::2] == answers[1::2]
    one.load(2)
    rows, later = ask()
    assert rows == len(prompts)  # the snapshot's are known
    assert later[1::2] == answers[1::2]
    assert {answer.versions for answer in later[::2]} == {(2,)}
    one.engine.drop_adapter("policy-1").result()
    one.load(1)
    (again,) = one.ask([Request(prompt_ids=PROMPT, max_tokens=1, seed=1)])
    assert again == alone


def test_equal_weights_stay_while_one_name_has_them(room: Callable[..., Any]) -> None:
    one = room("llama")

    def ask(name: str) -> Any:
        return one.ask([Request(prompt_ids=PROMPT, max_tokens=4, seed=1, adapter=name)])[0]

    one.load(1)
    expected = ask("policy")
    one.make_live(one.adapter(1, name="first"))
    one.make_live(one.adapter(1, name="second"))
    one.load(2)
    assert ask("policy") != expected
    for name in ("first", "second"):
        assert ask(name) == expected
        one.engine.drop_adapter(name).result()
    assert len(one.engine._scheduler.adapters._slots._slots) == 2  # the base, and what is live
    assert one.engine.versions() == {"policy": 2}


def test_another_version_than_the_one_asked_for_is_refused(room: Callable[..., Any]) -> None:
    one = room("llama")
    for number, (adapter, told) in enumerate(
        (("policy@3", "'policy' is at 0"), ("polic", "did you mean 'policy'"), ("base@1", "at 0"))
    ):
        one.submit({number: Request(prompt_ids=(1,), max_tokens=1, adapter=adapter)})
        one.finish()
        assert isinstance(one.error(number), RequestError)
        assert told in str(one.error(number))


def test_a_dropped_adapter_is_gone_but_ends_what_it_began(room: Callable[..., Any]) -> None:
    one = room("llama")
    request = Request(prompt_ids=(1,), max_tokens=9)
    (undisturbed,) = one.ask([request])
    one.submit({10: request})
    one.tick()
    with pytest.raises(AdapterError, match="'rival' is not live"):
        one.engine.drop_adapter("rival").result()
    one.engine.drop_adapter("policy").result()
    assert one.engine.versions() == {}
    one.finish()
    assert one.answer(10) == undisturbed
    one.submit({11: Request(prompt_ids=(1,), max_tokens=1)})
    one.finish()
    assert "adapter 'policy' is not live" in str(one.error(11))
    one.load(2)
    assert one.ask([Request(prompt_ids=(1,), max_tokens=1)])[0].versions == (2,)


def test_a_request_for_a_version_ends_with_it(room: Callable[..., Any]) -> None:
    """Its weights outlive a swap and a drop, and are freed once it has ended."""
    one = room("llama")
    pinned = Request(prompt_ids=PROMPT, max_tokens=6, seed=1, adapter="policy@0")
    (undisturbed,) = one.ask([pinned])
    slots = one.engine._scheduler.adapters._slots._slots
    one.submit({10: pinned})
    one.tick(3)
    one.load(7)
    assert len(slots) == 3  # the base's, and those of both versions
    one.submit({11: pinned})
    one.tick()
    assert "'policy' is at 7" in str(one.error(11))
    one.engine.drop_adapter("policy").result()
    assert len(slots) == 2
    one.finish()
    assert one.answer(10) == undisturbed
    assert len(slots) == 1
