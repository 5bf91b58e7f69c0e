"""Memory is planned before the first step, and passes shrink to stay below the ceiling."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from legos.data.batch import normalisation_weights, pack
from legos.losses.objective import Objective
from legos.mlx.gradients import StepGradients
from legos.mlx.load import load_tree
from legos.mlx.lora import add_lora, lora_shape
from legos.mlx.memory import MemoryPlan, peak_bytes, usable_bytes
from legos.testing import make_sample


def plan(**changed: int) -> MemoryPlan:
    numbers = {"held_bytes": 1000, "token_bytes": 8, "ceiling_bytes": 11_000, "longest": 100}
    return MemoryPlan(**numbers | changed)


def test_what_fits_is_done_at_once() -> None:
    assert plan().max_tokens(1000) == 1000
    assert plan().peak_bytes(1000) == 11_000


@pytest.mark.parametrize(("ceiling", "tokens"), [(10_999, 500), (6000, 500), (5999, 250), (0, 100)])
def test_what_does_not_fit_is_halved_down_to_the_longest_row(ceiling: int, tokens: int) -> None:
    assert plan(ceiling_bytes=ceiling).max_tokens(1000) == tokens


def test_a_row_that_does_not_fit_is_told() -> None:
    assert plan(ceiling_bytes=2000).fits
    assert "may not fit" not in plan(ceiling_bytes=2000).describe(1000)
    assert not plan(ceiling_bytes=1999).fits
    assert "set training.gradient_checkpointing" in plan(ceiling_bytes=1999).describe(1000)


def test_there_is_memory() -> None:
    assert 2**28 < usable_bytes() < 2**44


def test_a_low_ceiling_makes_passes_smaller_and_changes_nothing_else(
    tiny_models: Mapping[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    tree: Any = load_tree(tiny_models["llama"])
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True), seed=0)
    rng = np.random.default_rng(0)
    samples = [make_sample(rng.integers(1, 40, 100).tolist()) for _ in range(32)]
    batches = pack(samples, normalisation_weights(samples, "token"), max_tokens=10_000)
    found: list[dict[str, mx.array]] = []
    peaks: list[int] = []
    for ceiling in (1 << 40, mx.get_active_memory() + (12 << 20)):
        gradients = StepGradients(tree, max_tokens=4096, ceiling_bytes=ceiling)
        with caplog.at_level(logging.INFO):
            gradients.of_step(batches[:1], Objective(), {})  # the plan
        peaks.append(
            peak_bytes(
                lambda gradients=gradients: found.append(
                    dict(tree_flatten(gradients.of_step(batches, Objective(), {})[2]))
                )
            )
        )
        assert gradients.memory is not None
    assert "4096 of 4096 tokens at once" in caplog.text
    assert peaks[1] < 0.5 * peaks[0]
    assert peaks[1] < 12 << 20
    for name, array in found[0].items():
        assert np.array(found[1][name]) == pytest.approx(np.array(array), rel=1e-4, abs=1e-8)
