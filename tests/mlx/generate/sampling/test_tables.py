"""Tables: where few tokens can be drawn, only they are read, and prompts are remembered."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from legos.mlx.generate.sampling.draw import SamplingParams, distributions
from legos.mlx.generate.sampling.sampler import Row, Sampler
from legos.mlx.generate.sampling.tables import (
    CumulativeTable,
    KnownRows,
    allows_few,
    draw_from_table,
    table,
    table_of_few,
)
from legos.mlx.generate.sequences import SequenceState
from legos.records.choices import choice_tree
from legos.records.message import Filters
from legos.records.request import Request

VOCABULARY = 5000  # more than a table over all tokens is made for
MOVES = [(7,), (4990,), (300,)]
NAMESPACES = pytest.mark.parametrize("xp", [np, mx], ids=["host", "device"])


def logits_of(rows: int, kind: Any = mx.float32) -> mx.array:
    rng = np.random.default_rng(3)
    return mx.array(3 * rng.normal(size=(rows, VOCABULARY)).astype(np.float32)).astype(kind)


def moves(
    seed: int,
    prompt: tuple[int, ...] = (1, 2),
    choices: Sequence[tuple[int, ...]] = MOVES,
    **settings: Any,
) -> SequenceState:
    """A sequence that chooses among moves of one token."""
    tree = choice_tree(choices, end_ids=(0,))
    request = Request(
        prompt_ids=prompt, max_tokens=1, seed=seed, choices=tree, restrict=True, **settings
    )
    return SequenceState(seed, request, lambda _: None)


def text(seed: int, prompt: tuple[int, ...] = (1, 2)) -> SequenceState:
    """A sequence that may sample any token."""
    return SequenceState(seed, Request(prompt_ids=prompt, max_tokens=3, seed=seed), lambda _: None)


@NAMESPACES
@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16])
def test_few_tokens_are_drawn_as_from_the_whole_row(xp: Any, kind: Any) -> None:
    parameters = [
        SamplingParams(1.0, (300, 7, 4990)),
        SamplingParams(0.3, (12,)),
        SamplingParams(0.0, (5, 6, 4999, 40)),
    ]
    logits = logits_of(3, kind)
    values = np.array(logits.astype(mx.float32)) if xp is np else logits
    few = table_of_few(xp, values, parameters)
    whole = table(distributions(np, np.array(logits.astype(mx.float32)), parameters))
    places = {
        "which": np.arange(300) % 3,
        "seeds": list(range(300)),
        "positions": [n % 7 for n in range(300)],
    }
    tokens, logprobs = draw_from_table(few, **places)
    expected, certain = draw_from_table(whole, **places)
    assert tokens.tolist() == expected.tolist()
    assert logprobs.tolist() == pytest.approx(certain.tolist(), abs=1e-6)
    assert {tokens[0], tokens[1], tokens[2]} <= {7, 300, 4990, 12, 5, 6, 4999, 40}


def test_what_needs_other_logits_is_not_few() -> None:
    assert allows_few(SamplingParams(1.0, (3, 4)))
    assert not allows_few(SamplingParams(1.0, None))
    assert not allows_few(SamplingParams(1.0, np.ones(9, np.bool_)))
    assert not allows_few(SamplingParams(1.0, (3, 4), Filters(top_p=0.5)))
    assert not allows_few(SamplingParams(1.0, tuple(range(4097))))


@NAMESPACES
def test_a_mixed_block_draws_what_each_row_draws_alone(xp: Any) -> None:
    logits = logits_of(3)

    def drawn(numbers: list[int], namespace: Any) -> dict[int, tuple[int, float]]:
        sampler = Sampler(VOCABULARY, xp=namespace)
        groups = [[moves(0), moves(1)], [text(2), text(3)], [moves(4, temperature=0.0), text(5)]]
        rows: list[Row] = [((0, (n,)), groups[n], n) for n in numbers]
        tokens, logprobs = sampler.read(sampler.draw(rows, logits))
        sequences = [one for number in numbers for one in groups[number]]
        pairs = zip(tokens, logprobs, strict=True)
        return {one.number: pair for one, pair in zip(sequences, pairs, strict=True)}

    together = drawn([0, 1, 2], xp)
    alone = drawn([0], xp) | drawn([1], xp) | drawn([2], xp)
    assert together == alone
    assert {number for number, (token, _) in together.items() if (token,) in MOVES} >= {0, 1, 4}
    host = drawn([0, 1, 2], np)
    assert {n: token for n, (token, _) in together.items()} == {n: t for n, (t, _) in host.items()}


@NAMESPACES
def test_choices_of_a_large_vocabulary_are_remembered(xp: Any) -> None:
    sampler = Sampler(VOCABULARY, xp=xp)
    key, other = (5, (1, 2)), (6, (1, 2))  # of other weights
    first = [moves(seed) for seed in range(50)]
    drawn = sampler.read(sampler.draw([(key, first, 0)], logits_of(1)))
    again = [moves(seed) for seed in range(50)]
    assert sampler.knows(key, again)
    assert sampler.draw_known([(key, again, -1)]) == drawn
    assert len(set(drawn[0])) > 1
    assert not sampler.knows(other, again)
    assert not sampler.knows(key, [moves(0, temperature=0.5)])
    assert not sampler.knows(key, [moves(0, raw_logprobs=True)])
    sampler.read(sampler.draw([((7, (1, 2)), [text(0)], 0)], logits_of(1)))
    assert not sampler.knows((7, (1, 2)), [text(0)])
    sampler.known.clear()
    assert not sampler.knows(key, again)


@NAMESPACES
def test_a_row_with_many_choices_changes_none_beside_it(xp: Any) -> None:
    logits = logits_of(2)
    many = [(token,) for token in range(0, 4000, 3)]
    six = many[:6]
    keys = (5, (1, 2)), (5, (3,))

    def drawn(*rows: Row) -> tuple[Sampler, list[tuple[int, float]]]:
        sampler = Sampler(VOCABULARY, xp=xp)
        tokens, logprobs = sampler.read(sampler.draw(rows, logits))
        return sampler, list(zip(tokens, logprobs, strict=True))[:200]

    few: Row = (keys[0], [moves(seed, choices=six) for seed in range(200)], 0)
    alone, expected = drawn(few)
    beside, found = drawn(few, (keys[1], [moves(0, (3,), many)], 1))
    assert found == expected
    large = Sampler(VOCABULARY, xp=xp)
    large.read(large.draw([(keys[1], [moves(0, (3,), many)], 1)], logits))
    assert beside.known.nbytes == alone.known.nbytes + large.known.nbytes


def test_distributions_with_a_bias_are_not_remembered() -> None:
    sampler = Sampler(300)
    for bias, is_known in (((), True), (((5, 1.0),), False)):
        sequence = moves(1, choices=[(5,), (6,)], filters=Filters(top_p=0.9, logit_bias=bias))
        sampler.read(sampler.draw([((0, (1, 2)), [sequence], 0)], logits_of(1)[:, :300]))
        assert sampler.knows((0, (1, 2)), [sequence]) is is_known


def row_of(size: int) -> CumulativeTable:
    """A uniform distribution over so many tokens, from 10 on."""
    steps = np.ceil(np.arange(1, size + 1) / size * 2.0**24).astype(np.int32)
    ids = np.arange(10, 10 + size, dtype=np.int32)
    return CumulativeTable(np.full((1, size), -np.log(size), np.float32), steps[None], ids[None])


def test_rows_of_different_lengths_make_one_table() -> None:
    known = KnownRows()
    known.add("a", row_of(3), 1)
    known.add("b", row_of(1), 1)
    tokens, logprobs = draw_from_table(
        known.table(["b", "a"]), which=np.arange(200) % 2, seeds=range(200), positions=[0] * 200
    )
    assert set(tokens[::2].tolist()) == {10}
    assert set(tokens[1::2].tolist()) == {10, 11, 12}
    assert logprobs[:2].tolist() == pytest.approx([0.0, -np.log(3)], abs=1e-6)


def test_the_rows_added_last_are_kept() -> None:
    known = KnownRows(limit=3300)
    for key in "abc":
        known.add(key, row_of(2), 4)
    known.add("d", row_of(2), 4)
    assert [key for key in "abcd" if key in known] == ["b", "c", "d"]
    size = known.nbytes
    known.add("d", row_of(2), 4)  # replaced, not counted twice
    assert known.nbytes == size
    known.clear()
    assert (len(known), known.nbytes) == (0, 0)
