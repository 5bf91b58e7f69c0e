"""The comparisons of losses: each run is made once; tables and pictures follow from the file."""

import json
import sys
from pathlib import Path

import pytest
from launched import finished

FOLDER = Path(__file__).parent


def run(name: str, *arguments: str) -> str:
    return finished((sys.executable, FOLDER / name, *arguments))


@pytest.mark.nightly
def test_losses_are_compared_once(tmp_path: Path) -> None:
    file = tmp_path / "losses.jsonl"
    asked = (str(file), "--games", "nim", "--losses", "gspo", "--seeds", "0", "--more=--steps 2")
    told = run("compare_losses.py", *asked)
    written = file.read_text()
    row = json.loads(written)
    assert row["options"] == (
        "--arena nim --training.loss gspo --seed 0 --steps 2 --training.clip-range 0.2"
    )
    assert [step for step, _ in row["curve"]] == [0, 2]
    assert row["curve"][0][1] == pytest.approx(10 / 29, abs=1e-3)  # plays at random before
    assert row["moves"] > 2 * 256
    end = f"{row['curve'][-1][1]:.4f}"
    assert told.splitlines()[-1].startswith(f"| gspo | {end} | {end} | never | ")
    assert run("compare_losses.py", *asked) == told
    assert file.read_text() == written


def test_the_table_of_losses_holds_means_over_seeds(tmp_path: Path) -> None:
    file = tmp_path / "losses.jsonl"
    write_losses(file)
    told = run("compare_losses.py", str(file), "--games", "kuhn", "--losses", "ppo", "cispo")
    assert told.splitlines()[3:] == [
        "| ppo | 0.0300, 0.0400, 0.0600 | 0.0433 | 2, 3, never | 1.00% | 100 | 5 |",
        "| cispo | 0.0300, 0.0400, 0.0600 | 0.0433 | 2, 3, never | 1.00% | 100 | 5 |",
    ]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_picture_of_losses_is_drawn(tmp_path: Path) -> None:
    write_losses(tmp_path / "losses.jsonl")
    run("plot_losses.py", str(tmp_path / "losses.jsonl"), str(tmp_path))
    picture = (tmp_path / "losses_kuhn.svg").read_text()
    assert [name for name in ("ppo", "cispo", "gspo") if f">{name}<" in picture] == ["ppo", "cispo"]
    assert "kuhn: exploitability" in picture


@pytest.mark.nightly
def test_a_picture_of_runs_has_a_panel_for_each_figure(tmp_path: Path) -> None:
    for name, rows in {
        "evaluations.jsonl": [{"step": step, "eval/success": 0.1 * step} for step in (0, 5)],
        "metrics.jsonl": [{"step": step, "reward_mean": 1.0} for step in range(1, 6)],
    }.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    panels = ("--panel", "held out", "eval/success", str(tmp_path))
    panels += ("--panel", "trained", "reward_mean", str(tmp_path))
    run("plot_runs.py", str(tmp_path / "picture.svg"), *panels)
    picture = (tmp_path / "picture.svg").read_text()
    assert ">held out<" in picture
    assert ">trained<" in picture


def write_losses(file: Path) -> None:
    """Three seeds of kuhn under two losses, as the comparison leaves them."""
    curves = {
        0: [(0, 0.46), (1, 0.2), (2, 0.04), (3, 0.03)],
        1: [(0, 0.46), (1, 0.2), (2, 0.06), (3, 0.04)],
        2: [(0, 0.46), (1, 0.2), (2, 0.09), (3, 0.06)],
    }
    rows = [
        {
            "game": "kuhn",
            "loss": loss,
            "options": f"--arena kuhn --training.loss {loss} --seed {seed}",
            "curve": curve,
            "clipped": 0.01 * seed,
            "moves": 100,
            "seconds": 4 + seed,
        }
        for loss in ("ppo", "cispo")
        for seed, curve in curves.items()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
