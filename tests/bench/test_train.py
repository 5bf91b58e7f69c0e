"""The train bench ends, holds the figures that it promises, and meets those that noise cannot."""

import sys
from pathlib import Path

import pytest
from bench.command import Compared, judged
from bench.train import RATIOS, bench_train
from bench.train_bench import TrainerProcess, program

from legos.errors import TrainerError


@pytest.mark.nightly
def test_a_python_without_another_trainer_is_refused(tmp_path: Path) -> None:
    command = program("peer_trainer", tmp_path, python=Path(sys.executable))
    with pytest.raises(TrainerError, match=r"ended with code 1 .* --peer needs the Python of an"):
        TrainerProcess(command, 1)


@pytest.mark.nightly
@pytest.mark.timeout(900)  # minutes where other programs run
def test_the_train_bench_measures_every_ratio() -> None:
    figures = judged(bench_train, RATIOS, Compared(1.0, quick=True))
    ratios = figures["ratios"]
    assert set(ratios) == set(RATIOS)
    assert [name for name, ratio in ratios.items() if ratio is None] == list(
        figures["not_measured"]
    )
    assert ratios["group_memory_vs_padded"] < 0.5
    assert ratios["logprob_memory_vs_full"] < 0.2
    assert ratios["checkpoint_memory_vs_plain"] < 0.4
    assert ratios["group_vs_padded"] > 2.0  # 3.5 and more on quiet cores
    assert ratios["trie_vs_rows"] > 10.0
