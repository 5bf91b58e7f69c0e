"""The readers of a run's files: only what is new, whole lines, and damage by its number."""

import re
from pathlib import Path

import pytest
from made_records import make_episode

from legos.config.resolve import resolve
from legos.run.checkpoint import write_checkpoint
from legos.run.folder import RunFolder
from legos.run.metrics import newest_metrics


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_the_newest_line_of_a_step_is_found_before_evaluations_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert newest_metrics(path) == {}
    append(path, '{"step": 1, "loss": 0.5}\n{"step": 1, "eval/reward_mean": 1.0}\n[3]\nnonsense\n')
    assert newest_metrics(path) == {"step": 1, "loss": 0.5}
    append(path, '{"step": 2, "loss": 1}\n{"step": 3, "lo')
    assert newest_metrics(path) == {"step": 2, "loss": 1}


@pytest.mark.parametrize("within", [1, 7, 40, 1000])
def test_the_newest_line_is_found_from_the_end_of_a_long_file(within: int, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, "".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(1, 9)))
    append(path, '{"step": 8, "eval/reward_mean": 1.0}\n{"step": 9, "lo')
    assert newest_metrics(path, within=within)["step"] == 8
    assert newest_metrics(path, step=1, within=within)["step"] == 1
    assert newest_metrics(path, step=10, within=within) == {}


def test_values_that_are_no_numbers_are_none_and_no_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = f'"a": "high", "b": [1], "c": NaN, "d": 1{"0" * 400}, "e": null, "f": 0.5'
    append(path, f'{{"step": 2, {values}}}\n{{"step": true, "loss": 1}}\n')
    assert newest_metrics(path) == {"step": 2, **dict.fromkeys("abcde"), "f": 0.5}


def test_the_program_of_the_page_reads_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("runs/nim-1"))
    with run.new_run(resolve(overrides={"seed": 1}).toml()):
        append(run.metrics, '{"step": 1, "reward_mean": 0.25}\n')
        append(run.evaluations, '{"step": 1, "eval/exploitability": 0.1}\n')
        run.add_episodes(1, [make_episode({"first": reward}) for reward in (1.0, 0.0)])
        write_checkpoint(run.checkpoints, 1, lambda _: {}, keep=1)
    page = (Path(__file__).parents[2] / "docs" / "run" / "runs.md").read_text()
    code = re.search(r"```python\n(from legos import open_run.*?)```", page, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "stopped 1 0.25 {'step': array([1])}",
        "[0.1] {'seed': 1} command line",
        "1 1 first \x03 [-1.0] [] [None]",
        "step-000001 {} [] None []",
    ]
