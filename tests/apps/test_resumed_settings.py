"""Settings of a resumed run: what is refused, and what is kept."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from metric_lines import read_steps
from short_runs import NIM

from legos.cli.process import main
from legos.cli.run_settings import resolve_run
from legos.errors import ConfigError
from legos.track.jsonl import JsonlTracker


def train(folder: Path, *options: str, steps: int) -> None:
    assert main(["train", "--out", str(folder), "--steps", str(steps), *NIM, *options]) == 0


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_length_that_is_passed_is_not_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, "--loop.checkpoint-every", "2", steps=3)
    before = (run / "config.toml").read_bytes()
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--steps", "1"]) == 0
    told = capsys.readouterr().out
    assert f"nothing to do: the run in {run} has done 3 steps of 1; continue" in told
    shutil.rmtree(run / "checkpoints" / "step-000003")  # whose step is the last evaluated one
    assert main(["train", "--resume", str(run), "--steps", "1"]) == 2
    told = capsys.readouterr().err
    assert f"loop.steps is 1 but {run} has done 2 steps; it is the length" in told
    assert "give a larger one, such as --steps 4" in told
    assert (run / "config.toml").read_bytes() == before


def test_a_setting_that_the_run_did_not_know_stays_off(tmp_path: Path) -> None:
    """Games recommend ``play.rules`` since; a run that began without goes on without."""
    given = {"arena": "kuhn", "model": "some/model", "loop.steps": 9}
    text = resolve_run([], resume=None, overrides=given).toml()
    assert "\n#: rules = true  # arena kuhn" in text
    lines = [line for line in text.split("\n") if not line.startswith("#: rules = ")]
    (tmp_path / "config.toml").write_text("\n".join(lines))
    resumed = resolve_run([], resume=tmp_path, overrides={"loop.steps": 12})
    assert resumed.config.loop.steps == 12
    assert resumed.config.play.rules is None
    assert resumed.config.play.restrict_choices


@pytest.mark.parametrize("name", ["lora_rank", "lora_layers", "lora_alpha"])
def test_the_shape_of_lora_cannot_be_changed(tmp_path: Path, name: str) -> None:
    """Also where it is that of the adapter that the run started from, so that it has no effect."""
    given = {"arena": "kuhn", "model": "some/model", "adapter": "gone"}
    text = "\n".join(f'{setting} = "{value}"' for setting, value in given.items())
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"{name} is 3.*\(command line\) but the run in .* has"):
        resolve_run([], resume=tmp_path, overrides={f"training.{name}": 3})


@pytest.mark.slow
def test_settings_that_were_edited_are_refused_until_they_are_brought_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, steps=2)
    config = run / "config.toml"
    whole = config.read_bytes()
    config.write_bytes(whole[: whole.index(b"\n[play")])  # cut at a line
    before = files(run)
    for command in (["--resume", str(run)], ["--fork-from", str(run)]):
        assert main(["train", *command, "--steps", "4"]) == 2
        told = capsys.readouterr().err
        assert "config.toml was cut, edited or lost. It records how" in told
        assert files(run) == before
    copy = told.partition("\n  cp ")[2].partition("\n")[0].split()
    shutil.copyfile(*copy)
    assert config.read_bytes() == whole
    assert main(["train", "--resume", str(run), "--steps", "3"]) == 0


@pytest.mark.slow
def test_a_run_that_is_moved_meanwhile_says_so_and_goes_on_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    log = JsonlTracker.log

    def move(self: JsonlTracker, metrics: Any, *, step: int) -> None:
        log(self, metrics, step=step)
        if step == 2 and run.exists():
            run.rename(moved)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlTracker, "log", move)
        command = ["train", "--out", str(run), "--steps", "4", *NIM]
        assert main([*command, "--loop.checkpoint-every", "1"]) == 2
    told = capsys.readouterr().err
    assert f"error: {run} was moved or removed while the run wrote in it; " in told
    assert not run.exists()
    assert main(["train", "--resume", str(moved)]) == 0
    assert [line["step"] for line in read_steps(moved / "metrics.jsonl")] == [1, 2, 3, 4]
