"""The train bench ends, holds the figures that it promises, and meets those that noise cannot."""

import sys
from pathlib import Path

import pytest

from legos.apps.bench import bench
from legos.bench.train_bench import TrainerProcess
from legos.errors import TrainerError
from legos.mlx.checks import peer_trainer


def test_a_python_without_another_trainer_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, peer_trainer.__file__, str(tmp_path)]
    with pytest.raises(TrainerError, match=r"ended with code 1 .* --peer needs the Python of an"):
        TrainerProcess(command, 1)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)  # minutes where other programs run
def test_the_train_bench_measures_every_ratio() -> None:
    figures = bench("train", 1.0, quick=True)
    ratios = figures["ratios"]
    assert set(ratios) == {
        "dense_vs_bare",
        "dense_memory_vs_bare",
        "group_vs_padded",
        "group_memory_vs_padded",
        "mixed_vs_padded",
        "trie_vs_rows",
        "logprob_memory_vs_full",
        "logprob_speed_vs_full",
        "checkpoint_memory_vs_plain",
        "checkpoint_vs_plain",
        "token_scaling_exponent",
        "train_vs_fastest",
        "train_memory_vs_fastest",
        "group_vs_fastest",
    }
    assert [name for name, ratio in ratios.items() if ratio is None] == list(
        figures["not_measured"]
    )
    assert ratios["group_memory_vs_padded"] < 0.5
    assert ratios["logprob_memory_vs_full"] < 0.2
    assert ratios["checkpoint_memory_vs_plain"] < 0.4
    assert ratios["group_vs_padded"] > 2.0  # 3.5 and more on quiet cores
    assert ratios["trie_vs_rows"] > 10.0
