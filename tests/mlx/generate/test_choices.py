"""Restricted choices: nothing else is ever sampled, each as often as the model says."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from msgspec.structs import replace

from legos.records.choices import ChoiceNode, choice_tree
from legos.records.request import Generated, Request

END = (2, 3)
TREES: Mapping[str, list[tuple[int, ...]]] = {
    "one token": [(10,), (20,), (30,)],
    "several tokens": [(10, 11), (10, 12), (20, 21, 22), (30,)],
    "one begins another": [(10,), (10, 11), (10, 11, 12), (20,)],
    "only one": [(10, 11)],
}


def probabilities(tree: Any, prompt: Sequence[int], node: ChoiceNode, heat: float) -> dict:
    """Whole answers, ends included -> their probability, from forward passes alone."""
    logits = np.array(tree(mx.array([list(prompt)]))[0, -1].astype(mx.float32), np.float64)
    weights = np.exp((logits - logits.max()) / heat)[list(node.legal)]
    found: dict[tuple[int, ...], float] = {}
    for token, share in zip(node.legal, weights / weights.sum(), strict=True):
        child = node.children.get(token)
        if child is None or child.closed:
            found[(token,)] = share
            continue
        below = probabilities(tree, (*prompt, token), child, heat)
        found |= {(token, *rest): share * p for rest, p in below.items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["llama", pytest.param("qwen3", marks=pytest.mark.nightly), "wide"]
)
@pytest.mark.parametrize("name", list(TREES))
def test_answers_are_legal_and_as_frequent_as_the_model_says(
    room: Callable[..., Any], model: str, name: str
) -> None:
    one = room(model)
    root = choice_tree(TREES[name], end_ids=END)
    expected = probabilities(one.tree, (7, 8), root, heat=2.0)
    assert sum(expected.values()) == pytest.approx(1.0)
    count = 1500
    answers = one.ask(
        [
            Request(
                prompt_ids=(7, 8),
                max_tokens=5,
                temperature=2.0,
                seed=seed,
                end_ids=END,
                choices=root,
                restrict=True,
            )
            for seed in range(count)
        ]
    )
    assert {answer.finish_reason for answer in answers} == {"stop"}
    for answer in answers:
        assert sum(answer.logprobs) == pytest.approx(math.log(expected[answer.token_ids]), abs=1e-5)
        check_legal(answer, root)
    counts = Counter(answer.token_ids for answer in answers)
    assert set(counts) <= set(expected)
    rare = [answer for answer, p in expected.items() if p * count < 5]
    bins = [(counts[a], p * count) for a, p in expected.items() if a not in rare]
    bins += [(sum(counts[a] for a in rare), sum(expected[a] for a in rare) * count)] * bool(rare)
    chi_square = sum((seen - mean) ** 2 / mean for seen, mean in bins)
    assert chi_square < 30.0  # beyond the 0.9995 quantile of any number of bins here


def check_legal(answer: Generated, root: ChoiceNode) -> None:
    node: ChoiceNode | None = root
    for token, legal in zip(answer.token_ids, answer.legal, strict=True):
        assert node is not None
        assert legal == node.legal
        assert token in legal
        node = node.children.get(token)


def test_a_shorter_answer_is_ended_by_an_end_token(room: Callable[..., Any]) -> None:
    root = choice_tree(TREES["one begins another"], end_ids=END)
    answers = room("llama").ask(
        [
            Request(
                prompt_ids=(7,), max_tokens=9, temperature=3.0, seed=s, end_ids=END, choices=root,
                restrict=True,
            )
            for s in range(300)
        ]
    )  # fmt: skip
    seen = {answer.token_ids for answer in answers}
    ended = {(10, end) for end in END} | {(10, 11, end) for end in END}
    assert seen == ended | {(10, 11, 12), (20,)}


def test_offered_choices_that_do_not_bind_are_followed_as_far_as_they_go(
    room: Callable[..., Any],
) -> None:
    root = choice_tree([(10, 11), (20,)], end_ids=END)
    free = [Request(prompt_ids=(7,), max_tokens=4, seed=s, temperature=2.0) for s in range(400)]
    offered = [replace(request, choices=root) for request in free]
    for other, answer in zip(room("llama").ask(free), room("llama").ask(offered), strict=True):
        whole = [n for n in range(1, 5) if other.token_ids[:n] in {(10, 11), (20,)}]
        length = whole[0] if whole else 4
        assert answer.token_ids == other.token_ids[:length]
        assert answer.logprobs == pytest.approx(other.logprobs[:length], abs=1e-5)
        assert answer.finish_reason == ("stop" if whole else "length")
        first = answer.token_ids[0]
        after = {10: (11,)}.get(first, ())
        expected = ((10, 20), after, (), ())[:length]
        assert answer.legal == expected


@pytest.mark.slow
def test_one_prompt_with_many_settings_draws_each_from_its_own(room: Callable[..., Any]) -> None:
    """Sequences of one row may differ in temperature and in what they may say."""
    one = room("qwen3")
    trees = [None, *(choice_tree(answers, end_ids=END) for answers in TREES.values())]
    requests = [
        Request(
            prompt_ids=(7, 8),
            max_tokens=limit,
            temperature=heat,
            seed=number,
            end_ids=END,
            choices=root,
            restrict=root is not None,
        )
        for number, (root, heat, limit) in enumerate(
            itertools.product(trees, (0.0, 0.5, 1.0), (1, 3))
        )
    ]
    together = one.ask(requests)
    for request, generated in zip(requests, together, strict=True):
        (alone,) = room("qwen3").ask([request])
        assert generated.token_ids == alone.token_ids
        assert generated.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
