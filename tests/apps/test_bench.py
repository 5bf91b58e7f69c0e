"""The benches end, and hold the figures that they promise."""

import pytest

from legos.apps.bench import bench
from legos.errors import ConfigError


def test_an_unknown_bench_is_named() -> None:
    with pytest.raises(ConfigError, match="'loops'; did you mean 'loop'"):
        bench("loops", 1.0)


@pytest.mark.slow
def test_the_loop_bench_measures_both_halves_and_the_line() -> None:
    figures = bench("loop", 6.0)
    ratios = figures["ratios"]
    assert set(ratios) == {
        "engine_vs_bare",
        "engine_vs_bare_long",
        "engine_vs_bare_repeated",
        "line_vs_slower_half",
        "line_vs_slower_half_shared",
    }
    assert all(ratio > 0.0 for ratio in ratios.values())
    assert ratios["line_vs_slower_half"] > 1.0  # what computing equal rows once is for
    assert 0.0 <= figures["outside_device_share"] <= 1.0
    assert figures["distinct_rows_per_step"] == 21
    assert figures["moves_per_s"] == pytest.approx(
        figures["moves_per_step"] / figures["seconds_per_step"], rel=0.05
    )
