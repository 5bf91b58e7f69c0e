"""What the engine samples: batched as alone, in any company, and from the right distribution."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.load import load_tree
from legos.mlx.train.step_gradients import StepGradients
from legos.records.choices import choice_tree
from legos.records.limits import EngineLimits
from legos.records.packing import StepSamples
from legos.records.request import Generated, Request
from legos.records.step import BackendConfig

Floats = NDArray[np.float64]
MODELS = ("llama", pytest.param("qwen3", marks=pytest.mark.nightly), "wide")
END = 2


def random_requests(rng: random.Random, count: int) -> list[Request]:
    """Requests of all kinds; about half of them share the prompt of another one."""
    requests: list[Request] = []
    for number in range(count):
        prompt = tuple(rng.randrange(350) for _ in range(rng.choice((1, 2, 3, 9, 40))))
        if requests and rng.random() < 0.5:
            prompt = rng.choice(requests).prompt_ids
            if rng.random() < 0.3:
                prompt += (rng.randrange(350),)
        choices = [tuple(rng.randrange(350) for _ in range(rng.randint(1, 3))) for _ in range(4)]
        offered = rng.random() < 0.4
        requests.append(
            Request(
                prompt_ids=prompt,
                max_tokens=rng.choice((1, 1, 2, 5, 12)),
                temperature=rng.choice((0.0, 0.3, 1.0, 2.0)),
                seed=rng.getrandbits(64),
                end_ids=tuple(rng.randrange(350) for _ in range(20)),
                choices=choice_tree(choices, end_ids=(END,)) if offered else None,
                restrict=offered and rng.random() < 0.7,
                stops=(lambda tokens: sum(tokens) % 11 == 0) if number % 5 == 0 else None,
            )
        )
    return requests


def check_same(found: Sequence[Generated], expected: Sequence[Generated]) -> None:
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]
    assert [one.legal for one in found] == [one.legal for one in expected]
    assert [one.versions for one in found] == [one.versions for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_batch_is_sampled_as_its_requests_alone(room: Callable[..., Any], model: str) -> None:
    requests = random_requests(random.Random(2), 16)
    alone = []
    for request in requests:
        lonely = room(model)
        alone += lonely.ask([request])
    check_same(room(model).ask(requests), alone)
    assert {len(one.token_ids) for one in alone} >= {1, 2, 5, 12}
    assert {one.finish_reason for one in alone} == {"stop", "length"}


@pytest.mark.parametrize("model", ["llama", "wide"])
@pytest.mark.parametrize("names", [("policy",), ("policy", "rival", "base")])
def test_rules_before_moves_are_computed_once_for_each_adapter(
    room: Callable[..., Any], model: str, names: Sequence[str]
) -> None:
    rules = tuple(range(3, 83))

    def moves(numbers: range) -> list[Request]:
        prompts = {n: (*rules, *range(n, n + 1 + n % 4)) for n in numbers}
        return [
            Request(prompt_ids=ids, max_tokens=1, seed=n, adapter=name)
            for n, ids in prompts.items()
            for name in names
        ]

    def made(version: int) -> Any:
        one = room(model)
        one.make_live(one.adapter(2, name="rival"))
        one.load(version)
        return one

    def ask(one: Any, some: list[Request], version: int) -> int:
        """The number of tokens that are computed for it."""
        before = one.engine._scheduler.waiting.tokens_computed
        check_same(one.ask(some), [made(version).ask([request])[0] for request in some])
        return one.engine._scheduler.waiting.tokens_computed - before

    def tails(some: list[Request]) -> int:
        return sum(len(request.prompt_ids) - len(rules) for request in some)

    one, first, later, last = made(0), *(moves(range(n, n + 7)) for n in (5, 20, 30))
    assert ask(one, first, 0) == tails(first) + len(names) * len(rules)
    assert ask(one, later, 0) == tails(later)
    one.load(1)
    assert ask(one, last, 1) == tails(last) + len(rules)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limits", [(1, 16), (3, 60), (7, 4096)])
def test_little_room_changes_nothing_that_is_sampled(
    room: Callable[..., Any], model: str, limits: tuple[int, int]
) -> None:
    requests = random_requests(random.Random(2), 20)
    narrow = room(model, max_rows=limits[0], prefill_tokens=limits[1])
    check_same(narrow.ask(requests), room(model).ask(requests))


@pytest.mark.parametrize("seed", range(3))
def test_when_a_request_comes_does_not_matter(room: Callable[..., Any], seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 40)
    expected = room("qwen3").ask(requests)
    staggered = room("qwen3", max_rows=8)
    left = dict(enumerate(requests))
    while left:
        some = rng.sample(sorted(left), min(len(left), rng.randint(1, 6)))
        staggered.submit({number: left.pop(number) for number in some})
        staggered.tick(rng.randrange(4))
    staggered.finish()
    check_same([staggered.answer(number) for number in range(len(requests))], expected)


def next_logprobs(tree: Any, tokens: Sequence[int], temperature: float) -> Floats:
    """[V] log-probabilities of the next token, from one forward pass over everything."""
    logits = np.array(tree(mx.array([list(tokens)]))[0, -1].astype(mx.float32), np.float64)
    logits /= temperature
    logits -= logits.max()
    return logits - np.log(np.exp(logits).sum())


@pytest.mark.parametrize("model", MODELS)
def test_logprobs_are_those_of_a_forward_pass(room: Callable[..., Any], model: str) -> None:
    one = room(model)
    requests = [
        Request(prompt_ids=(5, 6, 7, number % 3), max_tokens=6, seed=number, temperature=heat)
        for number in range(12)
        for heat in (0.5, 1.0, 1.5)
    ]
    for request, generated in zip(requests, one.ask(requests), strict=True):
        whole, start = request.prompt_ids + generated.token_ids, len(request.prompt_ids)
        logits = one.tree(mx.array([list(whole)]))[0, start - 1 : -1].astype(mx.float32)
        exact = np.array(logits, np.float64) / request.temperature
        chosen = exact[np.arange(len(exact)), list(generated.token_ids)]
        expected = chosen - np.logaddexp.reduce(exact, axis=1)
        assert generated.logprobs == pytest.approx(expected, abs=1e-5)


def test_greedy_takes_the_most_probable_token(room: Callable[..., Any]) -> None:
    one = room("llama")
    first, second = one.ask(
        [Request(prompt_ids=(9, 8), max_tokens=8, temperature=0.0, seed=s) for s in (1, 2)]
    )
    seen = (9, 8)
    for token in first.token_ids:
        assert token == next_logprobs(one.tree, seen, 1.0).argmax()
        seen += (token,)
    assert first == second
    assert first.logprobs == (0.0,) * 8  # of the distribution sampled from: all on one token


def test_shared_prompts_are_computed_once_and_fork(room: Callable[..., Any]) -> None:
    one = room("llama")
    requests = [Request(prompt_ids=(1, 2, 3), max_tokens=3, seed=s) for s in range(50)]
    generated = one.ask(requests)
    seconds = {tokens.token_ids[:1] for tokens in generated}
    thirds = {tokens.token_ids[:2] for tokens in generated}
    assert one.engine.stats()["rows_computed_total"] == 1 + len(seconds) + len(thirds)
    assert len(seconds) > 20
    assert one.engine.tokens_generated("policy").result() == 150


@pytest.mark.parametrize("decode_ahead", ["off"])  # the host samples, and remembers
def test_a_prompt_that_comes_again_is_not_computed_again(room: Callable[..., Any]) -> None:
    one = room("llama")
    same = [Request(prompt_ids=(1, 2, 3), max_tokens=1, seed=s) for s in range(9)]
    first = one.ask(same)
    assert one.engine.stats()["rows_computed_total"] == 1
    assert one.ask(same) == first
    assert one.engine.stats()["rows_computed_total"] == 1
    one.load(1)
    after = one.ask(same)
    assert one.engine.stats()["rows_computed_total"] == 2
    expected = next_logprobs(one.tree, (1, 2, 3), 1.0)
    for generated in after:
        assert generated.versions == (1,)
        assert generated.logprobs[0] == pytest.approx(expected[generated.token_ids[0]], abs=1e-5)


@pytest.mark.parametrize("decode_ahead", ["off"])  # the host samples, and remembers
def test_what_is_remembered_is_bounded(room: Callable[..., Any]) -> None:
    one = room("llama")
    known = one.engine._scheduler.sampler.known
    known.limit = 20_000
    prompts = [Request(prompt_ids=(1, n), max_tokens=1, seed=n) for n in range(20)]
    first = one.ask(prompts)
    assert 0 < len(known) < 20
    assert known.limit / 2 < known.nbytes <= known.limit
    check_same(one.ask(prompts), first)


def test_completions_end_as_they_should(room: Callable[..., Any]) -> None:
    one = room("llama")
    free = one.ask([Request(prompt_ids=(4, 4), max_tokens=10, seed=3)])[0].token_ids
    assert len(set(free)) == 10
    ends = Request(prompt_ids=(4, 4), max_tokens=10, seed=3, end_ids=(free[3],))
    stops = Request(
        prompt_ids=(4, 4), max_tokens=10, seed=3, stops=lambda tokens: tuple(tokens) == free[:5]
    )
    last = Request(prompt_ids=(4, 4), max_tokens=4, seed=3, end_ids=(free[3],))
    ended, stopped, at_last, cut = one.ask(
        [ends, stops, last, Request(prompt_ids=(4, 4), max_tokens=4, seed=3)]
    )
    assert (ended.token_ids, ended.finish_reason) == (free[:4], "stop")  # the end is kept
    assert (stopped.token_ids, stopped.finish_reason) == (free[:5], "stop")
    assert (at_last.token_ids, at_last.finish_reason) == (free[:4], "stop")
    assert (cut.token_ids, cut.finish_reason) == (free[:4], "length")


def test_a_prompt_may_fill_the_context(room: Callable[..., Any]) -> None:
    one = room("qwen3")
    prompt = tuple(n % 300 for n in range(1000))  # longer than a chunk, and than a cache block
    (generated,) = one.ask([Request(prompt_ids=prompt, max_tokens=24, seed=1)])
    assert len(generated.token_ids) == 24
    seen = prompt + generated.token_ids[:-1]
    expected = next_logprobs(one.tree, seen, 1.0)[generated.token_ids[-1]]
    assert generated.logprobs[-1] == pytest.approx(expected, abs=1e-5)


def test_rows_are_bounded_whatever_forks(room: Callable[..., Any]) -> None:
    one = room("llama", max_rows=4)
    one.submit({n: Request(prompt_ids=(1,), max_tokens=6, seed=n) for n in range(30)})
    most = 0
    while one.worker.tick():
        most = max(most, len(one.engine._scheduler._rows))
    assert most == 4
    assert all(len(one.answer(n).token_ids) == 6 for n in range(30))


@pytest.mark.parametrize("model", ["llama", "wide"])
def test_ids_that_the_tokenizer_lacks_are_neither_sampled_nor_counted(
    room: Callable[..., Any], tiny_models: Mapping[str, Path], decode_ahead: Any, model: str
) -> None:
    """A padded head has logits for them; engine and trainer leave them out alike."""
    known, prompt = 60, (5, 6, 7)
    one = room(model)
    one.engine = MlxEngine(
        one.worker,
        load_tree(tiny_models[model]),
        num_vocabulary=known,
        context=1024,
        limits=EngineLimits(decode_ahead=decode_ahead),
    )
    one.load(0)
    requests = [
        Request(prompt_ids=prompt, max_tokens=12, seed=seed, raw_logprobs=seed % 2 == 0)
        for seed in range(6)
    ]
    answers = one.ask(requests)
    assert max(token for answer in answers for token in answer.token_ids) < known
    samples = [
        make_sample((*prompt, *answer.token_ids), positions=range(3, 3 + len(answer.token_ids)))
        for answer in answers
    ]
    step = StepSamples(samples=samples, weights=[1.0] * len(samples))
    gradients = StepGradients(one.tree, BackendConfig(num_vocabulary=known))
    found = gradients.of_step(step, Objective(), {}).logprobs
    sampled = [logprob for answer in answers for logprob in answer.logprobs]
    assert found == pytest.approx(np.array(sampled), abs=1e-5)
    assert answers[0].raw_logprobs == pytest.approx(answers[0].logprobs, abs=1e-6)
    scores = one.engine.score([(prompt, [(token,) for token in range(known)])], end_ids=(END,))
    one.finish()
    assert np.logaddexp.reduce(scores.result()[0]) == pytest.approx(0.0, abs=1e-5)
