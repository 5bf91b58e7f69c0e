"""The bench of torch and vLLM says what it measured, and what is missing."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench.command import Compared, judged
from bench.cuda import RATIOS, bench_cuda
from bench.train_bench import TrainerProcess, program

from legos.errors import TrainerError

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.skipif(find_spec("peft") is not None, reason="peft is installed")
def test_a_python_without_peft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"ended with code 1 .* and with peft for cuda.py"):
        TrainerProcess(program("plain_trainer", tmp_path, python=Path(sys.executable)), 1)


@pytest.mark.nightly
def test_without_peft_and_vllm_the_bench_measures_the_loss_path_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LEGOS_VLLM_BIN", raising=False)
    figures = judged(bench_cuda, RATIOS, Compared(1.0, quick=True, vllm=tmp_path / "vllm"))
    assert set(figures["ratios"]) == set(RATIOS)
    assert 0.2 < figures["ratios"]["loss_path_vs_bare"] < 5.0  # beside other tests
    missing = figures["not_measured"]
    assert {name for name, value in figures["ratios"].items() if value is None} == set(missing)
    assert "--peer" in missing["torch_vs_plain"]
    assert "LEGOS_VLLM_BIN" in missing["vllm_moves_vs_bare"]
