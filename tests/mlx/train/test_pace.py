"""Passes that end in time: fewer tokens at once by the measured speed, and the same gradients."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from mlx.utils import tree_flatten

from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train.pace import LEAST, PassPace
from legos.mlx.train.prefix_sharing.plan import plan_passes
from legos.mlx.train.prefix_sharing.trie import token_trie
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig


class Clock:
    """A time that moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def passed(pace: PassPace, clock: Clock, tokens: int, seconds: float) -> None:
    pace.begin()
    clock.now += seconds
    pace.end(tokens)


def test_tokens_follow_the_slowest_of_the_newest_passes() -> None:
    clock = Clock()
    pace = PassPace(0.5, clock)
    assert pace.max_tokens(4096) == 4096  # nothing is known
    passed(pace, clock, 4000, 2.0)
    assert pace.max_tokens(4096) == 1000
    passed(pace, clock, 2000, 0.5)  # twice as fast, which may not last
    assert pace.max_tokens(4096) == 1100
    passed(pace, clock, 1000, 1.0)
    assert pace.max_tokens(4096) == 500
    assert pace.longest_s == 2.0
    for _ in range(50):
        passed(pace, clock, 1000, 0.01)
    assert pace.max_tokens(4096) == 4096


def test_the_small_rest_of_a_step_says_nothing_of_the_speed() -> None:
    clock = Clock()
    pace = PassPace(0.5, clock)
    passed(pace, clock, 4000, 2.0)
    passed(pace, clock, 20, 0.12)
    assert pace.max_tokens(4096) == 1000
    passed(pace, clock, 20, 0.12)  # a step of its own: passes are as small as that now
    assert pace.max_tokens(4096) == 83


def test_passes_are_not_cut_to_nothing_nor_without_a_limit() -> None:
    clock = Clock()
    for limit, tokens in ((1e-6, LEAST), (None, 4096)):
        pace = PassPace(limit, clock)
        passed(pace, clock, 4000, 2.0)
        assert pace.max_tokens(4096) == tokens


def test_a_pass_that_only_reads_a_carried_prefix_says_nothing_of_the_speed() -> None:
    prefix = np.arange(100, dtype=np.int32)  # the end of a row, and longer ones go on from it
    rows = [prefix, *(np.append(prefix, np.full(151, end, np.int32)) for end in range(4))]
    first, *_ = plan_passes(token_trie(rows), max_tokens=128)
    assert first.num_tokens == 0
    clock = Clock()
    pace = PassPace(0.5, clock)
    passed(pace, clock, 4000, 2.0)
    passed(pace, clock, first.num_tokens, 0.1)
    assert pace.max_tokens(4096) == 1000


def test_passes_end_in_time_and_the_gradients_stay_the_same(
    tiny_models: Mapping[str, Path],
) -> None:
    tree = load_tree(tiny_models["llama"])
    add_lora(tree, lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False), seed=0)
    rng = np.random.default_rng(0)
    rows = [[1 + row, *rng.integers(1, 40, 99).tolist()] for row in range(32)]  # share nothing
    samples = [make_sample(row) for row in rows]
    step = StepSamples(samples=samples, weights=[1.0] * len(samples))
    readings = count()  # a second from each reading to the next, so every pass takes one
    config = BackendConfig(micro_batch_tokens=4096, pass_limit_s=0.25)
    gradients = StepGradients(tree, config, clock=lambda: float(next(readings)))
    passes: list[int] = []
    found: list[dict[str, np.ndarray]] = []
    for _ in range(2):
        asked: list[None] = []
        result = gradients.of_step(
            step, Objective(), {}, lambda asked=asked: bool(asked.append(None))
        )
        passes.append(len(asked))
        assert result.pass_s == 1.0
        found.append({k: np.array(v) for k, v in tree_flatten(result.gradients)})
    assert passes == [1, 4]  # 3,200 tokens in a second; 800 in a quarter
    for name, array in found[0].items():
        assert found[1][name] == pytest.approx(array, rel=1e-3, abs=1e-7)
