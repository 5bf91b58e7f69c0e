"""The bench of Ray: ``uv run --extra ray pytest -m optional tests/ray``."""

import pytest

from legos.apps.bench import bench
from legos.bench.ratios import RATIOS

pytestmark = [
    pytest.mark.optional,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]


def test_the_bench_of_ray_measures_every_ratio() -> None:
    figures = bench("ray", 4.0, quick=True)
    assert set(figures["ratios"]) == set(RATIOS["ray"])
    # three processes get more of a machine with other work than one does
    assert all(0.0 < ratio < 5.0 for ratio in figures["ratios"].values())
