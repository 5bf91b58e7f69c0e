"""The token trie and the passes made of it: everything once, in order, within the budget."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from legos.mlx.train.prefix_sharing.plan import Pass, pass_of_carried, plan_passes
from legos.mlx.train.prefix_sharing.trie import NO_PARENT, Trie, token_trie

Ints = NDArray[np.int32]


def rows_of(rows: Sequence[Sequence[int]]) -> list[Ints]:
    return [np.array(row, np.int32) for row in rows]


@st.composite
def step_rows(draw: st.DrawFn) -> list[Ints]:
    """Distinct rows, most of which begin as another one does."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    rows: list[tuple[int, ...]] = [(1,)]
    for _ in range(draw(st.integers(1, 40))):
        before = rows[int(rng.integers(len(rows)))]
        kept = before[: int(rng.integers(len(before) + 1))]
        length = int(rng.choice([0, 1, 3, 20, 90, 600]))
        rows.append((*kept, *rng.integers(1, 4, length).tolist()))
    return rows_of(sorted({row for row in rows if row}, key=lambda _: float(rng.random())))


def tokens_down_to(trie: Trie, segment: int) -> list[int]:
    return [int(t) for number in trie.path(segment) for t in trie.segments[number].tokens]


@given(step_rows(), st.booleans())
def test_every_row_is_a_prefix_of_its_path(rows: list[Ints], share: bool) -> None:
    trie = token_trie(rows, share=share)
    for row, segment in zip(rows, trie.row_segment, strict=True):
        assert tokens_down_to(trie, segment)[: len(row)] == row.tolist()
    for number, segment in enumerate(trie.segments):
        assert segment.parent < number
        assert len(segment.tokens) > 0
        before = 0 if segment.parent == NO_PARENT else trie.segments[segment.parent].end
        assert segment.start == before
    assert trie.num_tokens <= sum(map(len, rows))
    if not share:
        assert trie.num_tokens == sum(map(len, rows))


def computed(one: Pass) -> list[int]:
    return [segment for block in one.blocks for segment in block.numbers]


@given(step_rows(), st.integers(1, 600))
def test_passes_hold_every_row_once_after_what_it_continues(
    rows: list[Ints], max_tokens: int
) -> None:
    trie = token_trie(rows)
    passes = plan_passes(trie, max_tokens=max_tokens)
    alone = {number: pass_of_carried(trie, number) for one in passes for number in one.carried}
    everything = [number for one in (*passes, *alone.values()) for number in computed(one)]
    assert sorted(everything) == list(range(len(trie.segments)))  # nothing twice
    assert sorted(row for one in passes for row in one.rows) == list(range(len(rows)))
    for one in passes:
        done = set(one.carried)
        kept = set(one.carried)
        assert all(parent == NO_PARENT or parent in done for parent in one.carried.values())
        for block in one.blocks:
            for row, number in enumerate(block.numbers):
                segment = trie.segments[number]
                length = len(segment.tokens)
                assert block.input_ids[row, :length].tolist() == segment.tokens.tolist()
                assert not block.input_ids[row, length:].any()
                assert block.segments[row] is segment
                assert segment.parent == NO_PARENT or segment.parent in kept
                assert number not in done
                done.add(number)
            kept |= {block.numbers[row] for row in block.continued}
        assert all(set(trie.path(trie.row_segment[row])) <= done for row in one.rows)
        ends = {trie.row_segment[row] for row in one.rows}
        assert one.num_tokens <= max_tokens or len(ends) == 1


def test_a_prompt_and_its_completions() -> None:
    prompt = [1, 2] * 50
    trie = token_trie(rows_of([[*prompt, 3, 4], [*prompt, 4, 5, 6], [*prompt, 5]]))
    assert [(s.parent, s.start, len(s.tokens)) for s in trie.segments] == [
        (NO_PARENT, 0, 100),
        (0, 100, 2),
        (0, 100, 3),
        (0, 100, 1),
    ]
    (one,) = plan_passes(trie, max_tokens=1000)
    assert [block.input_ids.shape for block in one.blocks] == [(1, 100), (3, 3)]
    assert one.num_tokens == 109


def test_a_row_that_others_begin_with_costs_nothing() -> None:
    row = list(range(1, 30))
    trie = token_trie(rows_of([row[:5], row[:20], row]))
    assert trie.num_tokens == 29
    assert trie.row_segment == (0, 0, 0)


def test_short_prefixes_are_computed_again() -> None:
    rows = rows_of([[1, 2, 3, number, 5] for number in range(100)])
    assert token_trie(rows).num_tokens == 500


def groups(count: int, shared: int, answers: int) -> list[list[int]]:
    """Rows of groups: a prompt of its own, and different answers."""
    return [
        [*[10 + group] * shared, 100 + answer, 6]
        for group in range(count)
        for answer in range(answers)
    ]


@pytest.mark.parametrize(("count", "tokens"), [(16, 16 * (18 + 8 * 2)), (1, 8 * 20)])
def test_prefixes_that_save_little_are_shared_where_there_are_many(count: int, tokens: int) -> None:
    """Each saves 126 tokens; one call of the model costs about as much, for all of them."""
    assert token_trie(rows_of(groups(count, 18, 8))).num_tokens == tokens


def test_a_prefix_that_saves_little_beside_a_longer_one_is_dissolved() -> None:
    prompt = list(range(1, 11))
    rows = [[*prompt, 99, 98], *([*prompt, *[20] * 90, 30 + number] for number in range(8))]
    trie = token_trie(rows_of(rows))
    assert [len(segment.tokens) for segment in trie.segments] == [100, *[1] * 8, 12]
    assert trie.num_tokens == 120


def test_the_prompt_of_a_group_beyond_the_budget_is_carried() -> None:
    prompt = [1, 2] * 50
    trie = token_trie(rows_of([[*prompt, 3 + number, *[1] * 49] for number in range(8)]))
    passes = plan_passes(trie, max_tokens=200)
    assert [one.carried for one in passes] == [{0: NO_PARENT}] * 2
    assert [one.num_tokens for one in passes] == [200, 200]
    assert [len(one.rows) for one in passes] == [4, 4]
    alone = pass_of_carried(trie, 0)
    assert (alone.num_tokens, alone.rows, alone.carried) == (100, (), {})
    (whole,) = plan_passes(trie, max_tokens=500)
    assert (whole.num_tokens, whole.carried) == (500, {})


def test_unlike_lengths_are_not_padded_to_each_other() -> None:
    rng = np.random.default_rng(0)
    lengths = [50] * 10 + [200] * 10
    trie = token_trie([rng.integers(1, 9, length).astype(np.int32) for length in lengths])
    (one,) = plan_passes(trie, max_tokens=10_000)
    assert sorted(block.input_ids.shape for block in one.blocks) == [(10, 50), (10, 200)]
    assert one.num_tokens == pytest.approx(sum(lengths))


@pytest.mark.parametrize(
    ("length", "pieces"),
    [(1, [1]), (256, [256]), (300, [150, 150]), (700, [234, 233, 233]), (4000, [1000] * 4)],
)
def test_a_long_row_is_cut_into_few_pieces(length: int, pieces: Sequence[int]) -> None:
    row = np.arange(length, dtype=np.int32)
    trie = token_trie([row])
    assert [len(segment.tokens) for segment in trie.segments] == pieces
    assert [segment.parent for segment in trie.segments] == [NO_PARENT, *range(len(pieces) - 1)]
    assert len(token_trie([row], share=False).segments) == 1
