"""The server's bench ends, and holds the figures that it promises."""

import pytest
from bench.command import Compared, judged
from bench.server import RATIOS, bench_server


@pytest.mark.nightly
@pytest.mark.timeout(900)  # minutes where other programs run
def test_the_server_bench_measures_every_ratio() -> None:
    figures = judged(bench_server, RATIOS, Compared(4.0, quick=True))
    assert set(figures["ratios"]) == set(RATIOS)
    assert set(figures["servers"]) == {"legos", "mlx-lm"}
    assert all(ratio > 0.0 for name, ratio in figures["ratios"].items() if "spread" not in name)
    assert figures["ratios"]["server_vs_engine"] > 0.3
    assert figures["ratios"]["mixed_prompts_vs_sequential"] < 2.0
    assert figures["ratios"]["fairness_spread"] < 1.0
    assert figures["ratios"]["server_vs_mlx_lm"] > 1.5
