"""On-policy distillation: the divergence from a teacher on a server moves the policy alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launched import announced
from metric_lines import read_steps
from short_runs import NIM

from legos.cli.process import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "distil.py"


@pytest.mark.nightly
def test_a_student_comes_close_to_its_teacher_without_rewards(tmp_path: Path) -> None:
    taught, teacher, run = tmp_path / "taught", tmp_path / "teacher", tmp_path / "run"
    fast = ("--training.learning-rate", "1e-2", "--training.warmup-steps", "0")
    assert (
        main(["train", "--out", str(taught), "--steps", "25", "--deterministic", *NIM, *fast]) == 0
    )
    assert main(["export", str(taught), "--format", "fused", "--to", str(teacher)]) == 0
    prompts = [f"Nim: {left} left, last one wins.\nMoves: 1 2 3" for left in range(3, 30)]
    rows = "\n".join(json.dumps({"prompt": prompt}) for prompt in prompts)
    (tmp_path / "prompts.jsonl").write_text(rows)
    command = [sys.executable, "-m", "legos", "serve", "--model", str(teacher), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            options = {
                "--arena": f"{EXAMPLE}:Distil",
                "--play.options.data": str(tmp_path / "prompts.jsonl"),
                "--training.kl-coef": "1",
                "--training.kl-server": announced(server),
                "--generation.max-tokens": "2",
                "--steps": "40",
                "--out": str(run),
            }
            assert main(["train", *(word for pair in options.items() for word in pair)]) == 0
        finally:
            server.terminate()
    steps = read_steps(run / "metrics.jsonl")
    divergences = [float(step["kl_divergence"] or 0.0) for step in steps]
    assert sum(divergences[-5:]) < 0.2 * sum(divergences[:5])
    assert all(step["advantage_std"] == 0 for step in steps)
