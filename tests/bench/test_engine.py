"""The engine's bench ends and holds the figures that it promises."""

import pytest
from bench.command import judged
from bench.engine import RATIOS, bench_engine
from bench.rounds import Workload


@pytest.mark.nightly
def test_the_engine_bench_measures_sharing_and_swaps() -> None:
    ratios = judged(bench_engine, RATIOS, Workload(8.0, quick=True))["ratios"]
    assert set(ratios) == set(RATIOS)
    assert ratios["group_prefill_share"] <= 1 / 7
    assert ratios["multiturn_prefill_share"] <= 1.2
    assert ratios["engine_vs_bare"] > 0.3
    assert ratios["adapters4_vs_1"] > 0.3
