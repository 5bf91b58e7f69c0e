"""The settings in a run folder: what was cut, edited or lost is refused with the way back."""

import shutil
from pathlib import Path

import pytest

from legos.config.resolve import read_config, resolve
from legos.errors import CheckpointError
from legos.run.find import find_run
from legos.run.folder import RunFolder
from legos.run.settings import CONFIG


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with one checkpoint."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_config(resolve(overrides={"loop.steps": 500}).toml())
    checkpoint = folder.checkpoints / "step-000007"
    checkpoint.mkdir(parents=True)
    shutil.copy(folder.config, checkpoint)
    return folder


def test_what_was_written_is_read(run: RunFolder) -> None:
    assert read_config(run.settings).loop.steps == 500
    run.write_config(resolve(overrides={"loop.steps": 600}).toml())  # resumed, no checkpoint yet
    assert read_config(run.settings).loop.steps == 600


def test_every_cut_at_a_line_is_refused(run: RunFolder) -> None:
    lines = run.config.read_bytes().split(b"\n")
    for number in [n for n, line in enumerate(lines) if b" = " in line]:  # the first that is gone
        run.config.write_bytes(b"".join(line + b"\n" for line in lines[:number]))
        with pytest.raises(CheckpointError, match="was cut, edited or lost"):
            _ = run.settings


def test_an_edit_is_refused_with_the_way_back(run: RunFolder) -> None:
    text = run.config.read_text()
    run.config.write_text(text.replace("\nsteps = 500", "\nsteps = 50"))
    with pytest.raises(CheckpointError) as caught:
        _ = run.settings
    told = f"{caught.value}"
    assert "config.toml was cut, edited or lost. It records how the run was trained" in told
    kept, place = run.checkpoints / "step-000007" / CONFIG, run.path
    assert f"\n  cp {kept} {run.config}\n  uv run legos train --resume {place} " in told
    shutil.copyfile(kept, run.config)
    assert read_config(run.settings).loop.steps == 500


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"colour = 1\n", b"[[[", b"steps = 3\n"])
def test_other_files_are_refused(data: bytes, run: RunFolder) -> None:
    run.config.write_bytes(data)
    with pytest.raises(CheckpointError, match="was cut, edited or lost"):
        _ = run.settings


def test_without_a_checkpoint_a_cut_file_is_refused_and_one_without_a_digest_is_read(
    run: RunFolder,
) -> None:
    shutil.rmtree(run.checkpoints)
    whole = run.config.read_bytes()
    for data in (b"", whole[:-40]):
        run.config.write_bytes(data)
        with pytest.raises(CheckpointError, match="no checkpoint has a copy of it; start a new"):
            _ = run.settings
    run.config.write_bytes(whole.partition(b"\n")[2])  # as earlier versions wrote it
    assert read_config(run.settings).loop.steps == 500


def test_settings_that_are_lost_are_brought_back(run: RunFolder) -> None:
    run.config.unlink()
    kept = run.checkpoints / "step-000007" / CONFIG
    for lose in (Path.mkdir, Path.rmdir):
        lose(run.config)
        with pytest.raises(CheckpointError, match=f"edited or lost(.|\n)*  cp {kept} "):
            _ = find_run(run.path).settings
