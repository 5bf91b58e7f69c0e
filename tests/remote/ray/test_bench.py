"""The bench of Ray: ``uv run --extra ray pytest -m optional tests/remote/ray``."""

import pytest
from bench.command import judged
from bench.ray import RATIOS, bench_ray
from bench.rounds import Workload

pytestmark = [
    pytest.mark.optional,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]


def test_the_bench_of_ray_measures_every_ratio() -> None:
    pytest.importorskip("ray")
    figures = judged(bench_ray, RATIOS, Workload(4.0, quick=True))
    assert set(figures["ratios"]) == set(RATIOS)
    # three processes get more of a machine with other work than one does
    assert all(0.0 < ratio < 5.0 for ratio in figures["ratios"].values())
