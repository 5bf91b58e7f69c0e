"""The engine's bench ends and holds the figures that it promises."""

import pytest

from legos.apps.bench import bench


@pytest.mark.slow
def test_the_engine_bench_measures_sharing_and_swaps() -> None:
    ratios = bench("engine", 8.0, quick=True)["ratios"]
    assert set(ratios) == {
        "engine_vs_bare",
        "group_prefill_share",
        "multiturn_prefill_share",
        "adapters4_vs_1",
        "decode_ahead",
        "decode_with_swaps",
        "swap_pause_in_steps",
        "pause_in_steps_without_swap",
    }
    assert ratios["group_prefill_share"] <= 1 / 7
    assert ratios["multiturn_prefill_share"] <= 1.2
    assert ratios["engine_vs_bare"] > 0.3
    assert ratios["adapters4_vs_1"] > 0.3
