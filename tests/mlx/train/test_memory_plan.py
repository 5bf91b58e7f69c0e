"""The plan of a step's memory by hand: passes are halved, and rows that fit are found."""

from dataclasses import replace
from typing import Any

import pytest

from legos.mlx.model.forecast import Sizes
from legos.mlx.train.memory import MemoryPlan, usual_tokens
from legos.records.limits import TrainingSize

MIB = 1 << 20
SIZES = Sizes(
    weights=0,
    item=4,
    hidden=0,
    vocabulary=1,
    layers=1,
    heads=0,
    outputs=4096,
    inputs=0,
    lora=0,
    token_bytes=0,
    key_bytes=0,
    row_bytes=0,
    state_bytes=0,
    segment=1,
    segment_width=0,
    pair_heads=0,
    whole=False,
)


def plan(room: int, longest: int = 100, **changed: Any) -> MemoryPlan:
    """A plan of a model whose memory grows with the tokens alone, with some MiB of room."""
    numbers = {"held_bytes": 1000, "ceiling_bytes": 1000 + room * MIB, "longest": longest}
    sizes = replace(SIZES, **changed)
    return MemoryPlan(sizes=sizes, size=TrainingSize(layers=1), **numbers)


def test_what_fits_is_done_at_once() -> None:
    assert plan(100).max_tokens(1000) == 1000
    assert plan(100).peak_bytes(1000) <= 100 * MIB


@pytest.mark.parametrize(("room", "tokens"), [(50, 500), (20, 250), (10, 125), (9, 100)])
def test_what_does_not_fit_is_halved_down_to_the_longest_row(room: int, tokens: int) -> None:
    assert plan(room).max_tokens(1000) == tokens


def test_what_is_held_makes_passes_smaller() -> None:
    assert replace(plan(50), held_bytes=30 * MIB).max_tokens(1000) == 250


@pytest.mark.parametrize("heads", [0, 16])
@pytest.mark.parametrize("room", [20, 60, 200])
def test_the_longest_row_that_fits_fills_the_room(room: int, heads: int) -> None:
    one = plan(room, 100_000, heads=heads)
    limit = one.row_limit
    assert limit
    assert one.peak_bytes(limit) <= one.ceiling_bytes < one.peak_bytes(limit + limit // 16)
    assert one.max_tokens(4096) >= min(limit, 4096)
    told = one.describe(1000)
    assert f"samples of more than {limit} tokens do not fit and are left out (the longest" in told
    assert "training.gradient_checkpointing, where it is off, or a higher" in told


def test_the_longest_row_is_in_the_peak_of_passes_that_are_shorter() -> None:
    """It is a pass of its own, as no row is cut."""
    one = plan(100, longest=1000)
    assert one.max_tokens(100) == 100
    assert one.step_bytes(100) == one.peak_bytes(1000) > one.peak_bytes(100)
    assert f"100 of 100 tokens at once, {one.peak_bytes(1000) // MIB}" in one.describe(100)
    cut = plan(10, longest=1000)
    assert cut.step_bytes(100) == cut.peak_bytes(cut.row_limit or 0) <= cut.ceiling_bytes


def test_a_plan_covers_slightly_longer_rows_that_fit() -> None:
    tight, roomy = plan(10, longest=110), plan(100, longest=110)  # 127 tokens fit; and many
    assert [tight.covers(longest) for longest in (50, 110, 120, 130)] == [True, True, True, False]
    assert [roomy.covers(longest) for longest in (130, 140)] == [True, False]


def test_rows_of_which_none_fits_have_a_limit_of_0() -> None:
    assert plan(0).row_limit == 0
    assert plan(100).row_limit is None
    assert "do not fit" not in plan(100).describe(1000)


def test_passes_of_large_models_are_smaller_unless_they_are_given() -> None:
    small, large = SIZES, replace(SIZES, outputs=1 << 22)
    size = TrainingSize(layers=16)
    assert usual_tokens(small, size, 16 << 30) == 4096
    assert usual_tokens(large, size, 16 << 30) == 256
    assert usual_tokens(large, size, 1 << 50) == 4096
