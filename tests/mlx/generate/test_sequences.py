"""What one request asks of the sampler beside a token, and how it fails alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from msgspec.structs import replace

from legos.errors import RequestError
from legos.mlx.generate.request_check import RequestCheck
from legos.mlx.generate.sampling.sampler import Sampler
from legos.mlx.generate.sequences import SequenceState
from legos.records.choices import choice_tree
from legos.records.message import Filters
from legos.records.request import Generated, Progress, Request

Room = Callable[..., Any]
LIMITS: Mapping[str, Any] = {"num_vocabulary": 358, "context": 100}
FILTERED = Filters(
    repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, top_k=20, top_p=0.9
)


def complaint(**fields: Any) -> str | None:
    return RequestCheck(**LIMITS).refusal(Request(prompt_ids=(1,), max_tokens=3, **fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"repetition_penalty": 1e-40}, "repetition_penalty is 1e-40; expected 0.01 to 100"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
        ({"presence_penalty": -1e39}, "presence_penalty is -1e+39; expected -1000 to 1000"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"logit_bias": ((358, 1.0),)}, "logit_bias names token 358; the vocabulary has 358"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias names token -1"),
        ({"logit_bias": ((1, math.inf),)}, "logit_bias of token 1 is inf"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, "logit_bias names token 1 more than once"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
    ],
)
def test_bad_filters_are_refused_by_name(fields: Mapping[str, Any], words: str) -> None:
    assert words in (complaint(filters=Filters(**fields)) or "")


@pytest.mark.parametrize("number", [-1, 21])
def test_too_many_alternatives_are_refused(number: int) -> None:
    assert f"num_alternatives is {number}; expected 0 to 20" in str(
        complaint(num_alternatives=number)
    )


def test_good_requests_are_not_refused() -> None:
    assert complaint(filters=FILTERED, num_alternatives=20, raw_logprobs=True) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 7}, None),
        ({"seed": -1}, "seed is -1"),
        ({"prompt_ids": (358,)}, "holds token 358"),
        ({"max_tokens": 99}, None),
        ({"max_tokens": 100}, "exceed the context of 100"),
    ],
)
def test_only_a_new_seed_is_as_valid_as_the_last_request(
    changed: Mapping[str, Any], words: str | None
) -> None:
    check = RequestCheck(**LIMITS)
    valid = Request(prompt_ids=(1,), max_tokens=3, seed=1)
    assert check.refusal(valid) is None
    found = check.refusal(replace(valid, **changed))
    assert found is None if words is None else words in str(found)


def test_room_for_a_longer_request_does_not_make_it_valid_without() -> None:
    check = RequestCheck(**LIMITS)
    longest = Request(prompt_ids=(1,), max_tokens=100)
    assert check.refusal(longest, room=1) is None
    assert "exceed the context of 100" in str(check.refusal(longest))


class Only:
    """A grammar that allows some tokens at each place, and then is whole."""

    def __init__(self, *places: Sequence[int]) -> None:
        self.places = places

    def begin(self) -> "OnlyState":
        return OnlyState(self.places)


class OnlyState:
    def __init__(self, places: Sequence[Sequence[int]]) -> None:
        self.places = places
        self.taken: list[int] = []

    @property
    def closed(self) -> bool:
        return len(self.taken) == len(self.places)

    def allowed(self) -> Any:
        return np.isin(np.arange(358), self.places[len(self.taken)])

    def advance(self, token: int) -> None:
        if token == 13:
            raise ValueError("unlucky")
        self.taken.append(token)


def ask(**fields: Any) -> Request:
    given: dict[str, Any] = {"prompt_ids": (5, 6, 7), "max_tokens": 6, **fields}
    return Request(**given)


MIXED = [
    ask(seed=1),
    ask(seed=1, filters=FILTERED),
    ask(seed=2, prompt_ids=(5, 6), filters=FILTERED, temperature=0.7),
    ask(seed=3, filters=Filters(min_p=0.3), raw_logprobs=True),
    ask(seed=4, num_alternatives=3),
    ask(seed=5, num_alternatives=5, raw_logprobs=True, temperature=0.5),
    ask(seed=5, num_alternatives=2, temperature=0.0),
    ask(seed=6, grammar=Only((10, 11), (20,), (30, 31, 32))),
    ask(seed=7, grammar=Only((10, 11), (20,)), filters=FILTERED, num_alternatives=4),
    ask(seed=8, temperature=0.0, filters=Filters(logit_bias=((44, 90.0),), presence_penalty=99.0)),
    ask(seed=9, restrict=True, choices=choice_tree([(1, 2), (1, 3)], end_ids=(2,))),
]


@pytest.mark.parametrize("model", ["llama", "wide"])
def test_requests_of_all_kinds_together_are_as_alone(room: Room, model: str) -> None:
    together = room(model).ask(MIXED)
    for request, generated in zip(MIXED, together, strict=True):
        (alone,) = room(model).ask([request])
        assert generated.token_ids == alone.token_ids
        assert generated.finish_reason == alone.finish_reason
        assert generated.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        assert generated.raw_logprobs == pytest.approx(alone.raw_logprobs, abs=1e-5)
        for some, others in zip(generated.alternatives, alone.alternatives, strict=True):
            assert [token for token, _ in some] == [token for token, _ in others]
        assert len(generated.raw_logprobs) == (6 if request.raw_logprobs else 0)


def test_what_is_recorded_is_what_the_model_says(room: Room) -> None:
    one = room("llama")
    request = ask(
        seed=5, num_alternatives=5, raw_logprobs=True, temperature=0.5, filters=Filters(top_k=4)
    )
    (found,) = one.ask([request])
    for place, token in enumerate(found.token_ids):
        tokens = mx.array([[*request.prompt_ids, *found.token_ids[:place]]])
        logits = np.array(one.tree(tokens)[0, -1].astype(mx.float32), np.float64)
        raw = logits - np.log(np.exp(logits).sum())
        assert found.raw_logprobs[place] == pytest.approx(raw[token], abs=1e-4)
        likely = np.argsort(-logits)[:4]
        heat = logits[likely] / 0.5
        share = dict(zip(likely.tolist(), heat - np.log(np.exp(heat).sum()), strict=True))
        assert [t for t, _ in found.alternatives[place]][:4] == likely.tolist()
        assert [p for _, p in found.alternatives[place]][:4] == pytest.approx(raw[likely], abs=1e-4)
        assert found.logprobs[place] == pytest.approx(share[token], abs=1e-4)


@pytest.mark.parametrize("model", ["llama", "wide"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_alternatives_of_the_model_itself(room: Room, model: str, temperature: float) -> None:
    own = {"num_alternatives": 5, "temperature": temperature}
    one = room(model)
    for _ in range(2):  # the second time from cached distributions, if these would do
        found, plain = one.ask([ask(seed=5, raw_logprobs=True, **own), ask(seed=5, **own)])
        assert found.alternatives == plain.alternatives
        tokens = mx.array([[5, 6, 7]])
        logits = np.array(one.tree(tokens)[0, -1].astype(mx.float32), np.float64)
        raw = logits - np.log(np.exp(logits).sum())
        likely = np.argsort(-logits)[:5]
        assert [t for t, _ in found.alternatives[0]] == likely.tolist()
        assert [p for _, p in found.alternatives[0]] == pytest.approx(raw[likely], abs=1e-4)
        if temperature == 0.0:
            assert set(found.logprobs) == {0.0}
            tops = [others[0] for others in found.alternatives]
            assert tops == list(zip(found.token_ids, found.raw_logprobs, strict=True))


def test_penalties_tell_the_prompt_from_the_completion() -> None:
    """Of the same two tokens in one row, one request was asked both and the other said one."""
    asked = ask(prompt_ids=(5, 6), temperature=0.0, filters=Filters(presence_penalty=50.0))
    said = ask(prompt_ids=(5,), temperature=0.0, filters=Filters(presence_penalty=50.0))
    sequences = [
        SequenceState(n, request, lambda _: None) for n, request in enumerate((asked, said))
    ]
    assert sequences[1].add(6, -1.0, 0) is None
    logits = np.zeros((1, 358), np.float32)
    logits[0, 6], logits[0, 9] = 2.0, 1.0
    sampler = Sampler(358)
    tokens, _ = sampler.read(sampler.draw([((0, (5, 6)), sequences, 0)], mx.array(logits)))
    assert tokens == [6, 9]


@pytest.mark.parametrize("decode_ahead", ["off"])  # the host samples, and remembers
def test_known_rows_serve_filters(room: Room) -> None:
    one = room("llama")
    last = [
        ask(max_tokens=1, seed=seed, filters=filters)
        for seed, filters in enumerate([None, FILTERED, Filters(top_k=1), None, FILTERED] * 2)
    ]
    first = one.ask(last)
    rows = one.engine.stats()["rows_computed_total"]
    assert one.ask(last) == first
    assert one.engine.stats()["rows_computed_total"] == rows
    raw = ask(max_tokens=1, seed=0, raw_logprobs=True)
    (found,) = one.ask([raw])
    assert found.raw_logprobs == pytest.approx(found.logprobs, abs=1e-5)


class Broken:
    """A grammar that fails in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def begin(self) -> "Broken":
        if self.where == "begin":
            raise ValueError("no beginning")
        return self

    closed = False

    def allowed(self) -> Any:
        if self.where == "allowed":
            raise ValueError("no mask")
        return np.zeros(358, np.bool_) if self.where == "nothing" else np.ones(358, np.bool_)

    def advance(self, token: int) -> None:
        raise ValueError("no way on")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("begin", "no beginning"),
        ("allowed", "no mask"),
        ("nothing", "allows no token after 0"),
        ("advance", "no way on"),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_a_grammar_that_fails_ends_its_own_request_only(
    room: Room, where: str, words: str, order: Sequence[int]
) -> None:
    one = room("llama")
    asked = {0: ask(seed=1), 1: ask(seed=1, grammar=Broken(where)), 2: ask(seed=2)}
    one.submit({number: asked[number] for number in order})
    one.finish()
    assert isinstance(one.error(1), RequestError)
    assert words in str(one.error(1))
    alone = room("llama").ask([ask(seed=1), ask(seed=2)])
    assert [one.answer(0), one.answer(2)] == alone


def test_a_grammar_ends_its_completion(room: Room) -> None:
    one = room("llama")
    requests = [ask(seed=s, grammar=Only((10, 11), (20,), (30, 31))) for s in range(50)]
    found = one.ask(requests)
    assert {answer.finish_reason for answer in found} == {"stop"}
    assert {answer.token_ids for answer in found} == {
        (a, 20, b) for a in (10, 11) for b in (30, 31)
    }
    assert all(answer.logprobs[1] == 0.0 for answer in found)
    unlucky = ask(grammar=Only((13,)))
    one.submit({900: unlucky})
    one.finish()
    assert "at token 13: ValueError('unlucky')" in str(one.error(900))


@pytest.mark.parametrize("xp", [None, np, mx], ids=["fastest", "host", "device"])
@pytest.mark.parametrize("vocabulary", [358, 5000])
def test_a_row_that_is_not_numbers_fails_alone(xp: Any, vocabulary: int) -> None:
    logits = np.random.default_rng(0).normal(size=(3, vocabulary)).astype(np.float32)
    logits[1, 3] = np.nan
    sampler = Sampler(vocabulary, xp=xp)
    sequences = [SequenceState(n, ask(seed=n, max_tokens=1), lambda _: None) for n in range(4)]
    rows = [
        ((0, (5, 6, 7)), sequences[:1], 0),
        ((0, (5,)), sequences[1:3], 1),
        ((0, (6,)), sequences[3:], 2),
    ]
    tokens, logprobs = sampler.read(sampler.draw(rows, mx.array(logits)))
    assert sampler.draws == 2
    assert tokens[1:3] == [-1, -1]
    assert math.isnan(logprobs[1])
    assert not sampler.knows((0, (5,)), sequences[1:3])
    assert sequences[0].add(tokens[0], logprobs[0], 0) == "length"
    with pytest.raises(RequestError, match="logits are not numbers"):
        sequences[1].add(tokens[1], logprobs[1], 0)
    logits[1, 3] = 0.0
    fresh = [SequenceState(n, ask(seed=n, max_tokens=1), lambda _: None) for n in range(4)]
    rows = [((0, (5, 6, 7)), fresh[:1], 0), ((0, (5,)), fresh[1:3], 1), ((0, (6,)), fresh[3:], 2)]
    again = Sampler(vocabulary, xp=xp)
    sound = again.read(again.draw(rows, mx.array(logits)))
    assert (tokens[0], tokens[3]) == (sound[0][0], sound[0][3])
    assert (logprobs[0], logprobs[3]) == (sound[1][0], sound[1][3])


@pytest.mark.parametrize("xp", [None, mx], ids=["fastest", "device"])
def test_both_namespaces_record_the_same(xp: Any) -> None:
    rng = np.random.default_rng(1)
    logits = mx.array((2 * rng.normal(size=(2, 5000))).astype(np.float32))
    sequences = [SequenceState(n, request, lambda _: None) for n, request in enumerate(MIXED)]
    rows = [((0, (1,)), sequences[:5], 0), ((0, (2,)), sequences[5:], 1)]
    sampler = Sampler(5000, xp=xp)
    tokens, logprobs = sampler.read(sampler.draw(rows, logits))
    others = [SequenceState(n, request, lambda _: None) for n, request in enumerate(MIXED)]
    rows = [((0, (1,)), others[:5], 0), ((0, (2,)), others[5:], 1)]
    sampler = Sampler(5000, xp=np)
    right = sampler.read(sampler.draw(rows, logits))
    assert tokens == right[0]
    assert logprobs == pytest.approx(right[1], abs=1e-5)
    for sequence, other in zip(sequences, others, strict=True):
        assert sequence.raw_logprobs == pytest.approx(other.raw_logprobs, abs=1e-5)
        assert len(sequence.alternatives) == (sequence.request.num_alternatives > 0)
        for some, same in zip(sequence.alternatives, other.alternatives, strict=True):
            assert [t for t, _ in some] == [t for t, _ in same]


def test_progress_is_what_came_since_the_last_time() -> None:
    sequence = SequenceState(0, ask(raw_logprobs=True), lambda _: None)
    assert sequence.progress() is None
    for token in (4, 8):
        sequence.raw_logprobs.append(-0.5)
        assert sequence.add(token, -1.0, 3) is None
    assert sequence.progress() == Progress(
        token_ids=(4, 8), logprobs=(-1.0, -1.0), versions=(3, 3), raw_logprobs=(-0.5, -0.5)
    )
    assert sequence.progress() is None
    sequence.raw_logprobs.append(-0.25)
    sequence.add(9, -2.0, 4)
    assert sequence.progress() == Progress(
        token_ids=(9,), logprobs=(-2.0,), versions=(4,), raw_logprobs=(-0.25,)
    )
    assert sequence.generated("length") == Generated(
        token_ids=(4, 8, 9),
        logprobs=(-1.0, -1.0, -2.0),
        versions=(3, 3, 4),
        legal=(),
        finish_reason="length",
        raw_logprobs=(-0.5, -0.5, -0.25),
    )


def test_a_token_is_appended_and_none_is_copied() -> None:
    sequence = SequenceState(0, ask(max_tokens=3), lambda _: None)
    before = sequence.tokens
    assert [sequence.add(token, -1.0, 0) for token in (5, 6, 7)] == [None, None, "length"]
    assert sequence.tokens is before
    assert sequence.generated("length").token_ids == (5, 6, 7)
