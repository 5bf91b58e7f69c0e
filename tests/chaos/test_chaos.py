"""Chaos with real processes: whatever happens to them, a run keeps its promises.

For longer: ``PYTHONPATH=tests uv run python -m chaos --minutes 30 --seed 0``.
"""

import sys
from pathlib import Path

import pytest
from chaos.story import as_table, chaos

SEED, MINUTES = 0, 2.0  # the processes start before, and the last fault ends after


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets limits")
def test_a_run_keeps_its_promises(tmp_path: Path) -> None:
    events = chaos(tmp_path / "world", seed=SEED, minutes=MINUTES)
    assert len(events) >= 6, as_table(events)
