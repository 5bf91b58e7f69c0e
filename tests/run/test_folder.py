"""A run folder: begun whole or not at all, never mixed with another, rewound without traces."""

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_records import make_episode

from legos.errors import (
    AdapterError,
    ArenaError,
    CheckpointError,
    EngineError,
    LegosError,
)
from legos.run.ending import failure_kept
from legos.run.find import adapter_of, checkpoint_of, find_adapter, find_run, fresh_folder
from legos.run.folder import RunFolder
from legos.run.settings import sealed
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.folder import read_adapter


def adapter(version: int) -> Adapter:
    shape = LoraShape(rank=1, scale=1.0, num_layers=1, modules=("head",))
    arrays = {"head.lora_a": np.full((2, 1), version, np.float32)}
    return Adapter(name="policy", version=version, shape=shape, arrays=arrays)


def begun(path: Path) -> RunFolder:
    folder = RunFolder(path)
    with folder.new_run("seed = 1\n"):
        pass
    return folder


def test_a_new_run_has_its_settings(tmp_path: Path) -> None:
    folder = begun(tmp_path / "deep" / "run")
    assert folder.config.read_bytes() == sealed("seed = 1\n")
    assert [path.name for path in folder.path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    "part", ["config.toml", "metrics.jsonl", "episodes.jsonl", "adapters/v0", "checkpoints/x"]
)
def test_no_two_runs_in_one_folder(part: str, tmp_path: Path) -> None:
    place = tmp_path / part
    place.parent.mkdir(exist_ok=True)
    place.touch()
    with (
        pytest.raises(CheckpointError, match="already holds a run; go on with --resume") as caught,
        RunFolder(tmp_path).new_run(""),
    ):
        pytest.fail("the run was begun")
    assert str(tmp_path) in str(caught.value)
    assert "or choose another --out" in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [place]


def test_a_run_that_came_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    notes = tmp_path / "run" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")

    def fail() -> None:
        folder = RunFolder(tmp_path / "run")
        with folder.new_run("seed = 1\n"):
            folder.metrics.touch()
            folder.write_adapters([adapter(0)])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [notes]
    notes.unlink()
    with pytest.raises(KeyError):
        fail()
    assert not notes.parent.exists()


@pytest.mark.parametrize("part", ["metrics.jsonl", "checkpoints/step-000003/state.json"])
def test_a_run_that_failed_later_keeps_what_it_has(part: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    def fail() -> None:
        with folder.new_run("seed = 1\n"):
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).write_text("{}\n")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert folder.config.exists()
    assert (tmp_path / part).exists()


@pytest.mark.parametrize("below", ["", "deep/run"])
def test_a_place_that_is_no_folder_is_refused(below: str, tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.touch()
    place = file / below
    with pytest.raises(CheckpointError) as caught, RunFolder(place).new_run(""):
        pytest.fail("the run was begun")
    assert str(caught.value) == (
        f"--out is {place} but {file} is a file; give the folder of a run, such as runs/mine"
    )
    with pytest.raises(CheckpointError, match=r"cannot make the run folder .*--out"):
        fresh_folder(file, "nim")


def test_a_place_where_nothing_may_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)  # root may write anywhere
    for run in (RunFolder(tmp_path), RunFolder(tmp_path / "run")):
        for use in (run.check_free, run.new_run("").__enter__):
            with pytest.raises(CheckpointError, match=r"denied.*; let this user write there"):
                use()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has /sys")
def test_a_file_system_that_refuses_is_named() -> None:
    run = RunFolder(Path("/sys/run"))
    for use in (run.new_run("").__enter__, run.resumed_run().__enter__):
        with pytest.raises(CheckpointError, match=r"be written: .*; let this user write there"):
            use()


def test_a_run_that_was_begun_and_ended_since_the_check_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes find a folder free; the second one gets its lock after the first has ended."""
    monkeypatch.setattr(RunFolder, "check_free", lambda _: None)
    folder = begun(tmp_path / "run")
    with (
        pytest.raises(CheckpointError, match="already holds a run; go on with --resume"),
        folder.new_run("seed = 2\n"),
    ):
        pytest.fail("the run was begun")
    assert folder.config.read_bytes() == sealed("seed = 1\n")


KILLED = """
import os, signal, sys
from pathlib import Path
from legos.run.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.new_run("seed = 1"):
    folder.metrics.touch()
    folder.adapters.mkdir()
    (folder.adapters / ".v0.12-ab.unfinished").mkdir()
    for part in sys.argv[2:]:
        (folder.path / part).parent.mkdir(exist_ok=True)
        (folder.path / part).write_text("{}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_in(run: Path, *parts: str) -> None:
    """Have a process begin a run, write these parts, and be killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(run), *parts], check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_run_left_before_its_first_checkpoint_is_no_hindrance(tmp_path: Path) -> None:
    kill_in(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.check_free()
    with folder.new_run("seed = 2"):
        assert folder.config.read_bytes() == sealed("seed = 2")
        assert {path.name for path in folder.path.iterdir()} == {".lock", "config.toml"}
    kill_in(tmp_path / "other")
    with RunFolder(tmp_path / "other").resumed_run() as checkpoint:
        assert checkpoint is None
        names = {path.name for path in (tmp_path / "other").iterdir()}
        assert names == {".lock", "config.toml"}


def test_a_killed_run_with_a_checkpoint_or_a_step_stays(tmp_path: Path) -> None:
    for part in ("checkpoints/step-000000", "metrics.jsonl"):
        run = tmp_path / part.replace("/", "-")
        kill_in(run, part)
        with pytest.raises(CheckpointError, match="already holds a run; go on with --resume"):
            RunFolder(run).check_free()
        with (
            pytest.raises(CheckpointError, match="already holds a run"),
            RunFolder(run).new_run(""),
        ):
            pytest.fail("the run was begun")
        assert (run / part).exists()
        assert (run / "config.toml").read_bytes() == sealed("seed = 1")


def test_a_folder_in_use_is_not_touched(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.new_run("seed = 1"):
        half = folder.checkpoints / ".step-000001.12-ab.unfinished"
        half.mkdir(parents=True)
        for use in (
            folder.check_free,
            folder.new_run("").__enter__,
            folder.resumed_run().__enter__,
        ):
            with pytest.raises(CheckpointError, match=f"is in use: process {os.getpid()} on"):
                use()
        with pytest.raises(CheckpointError, match="no whole checkpoint"):
            checkpoint_of(folder)
        assert half.exists()
        assert folder.config.read_bytes() == sealed("seed = 1")


@pytest.mark.parametrize("error", [ArenaError("no cards"), EngineError("the engine died")])
def test_only_what_fails_again_forgets_the_checkpoint_before_the_first_step(
    error: LegosError, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")

    def fail() -> None:
        with folder.new_run("seed = 1\n"):
            (folder.checkpoints / "step-000000").mkdir(parents=True)
            raise error

    with pytest.raises(type(error)):
        fail()
    assert folder.path.exists() == isinstance(error, EngineError)


def test_fresh_folders_are_numbered_and_taken_at_once(tmp_path: Path) -> None:
    parent = tmp_path / "runs"
    assert fresh_folder(parent, "nim") == parent / "nim-1"
    assert fresh_folder(parent, "nim") == parent / "nim-2"
    assert fresh_folder(parent, "kuhn") == parent / "kuhn-1"
    place = parent / "openenv-http-localhost-8000-1"
    assert fresh_folder(parent, "openenv:http://localhost:8000/") == place
    names = ["kuhn-1", "nim-1", "nim-2", "openenv-http-localhost-8000-1"]
    assert sorted(path.name for path in parent.iterdir()) == names


def test_adapters_are_found_by_number_and_by_name(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    for version in (0, 9, 10):
        folder.write_adapters([adapter(version)])
    (folder.adapters / "v10.old").mkdir()
    (folder.adapters / "vocabulary").mkdir()
    assert adapter_of(folder).name == "v10"
    assert read_adapter(adapter_of(folder, "v9")).version == 9
    with pytest.raises(CheckpointError, match=r"has no adapter 'v3'; it has v0, v9, v10$"):
        adapter_of(folder, "v3")
    with pytest.raises(CheckpointError, match="has no adapter 'vocabulary'"):
        adapter_of(folder, "vocabulary")


def skipping(path: Path) -> RunFolder:
    """A run whose fourth step was skipped: from there on, versions are one behind the steps."""
    folder = RunFolder(path)
    with folder.new_run("seed = 1\n"):
        for version in (0, 3, 5):
            folder.write_adapters([replace(adapter(version), base_model="some/model")])
    folder.evaluations.write_text('{"step": 0, "policy_version": 0}\n')
    lines = [{"step": n, "policy_version": n if n < 4 else n - 1} for n in range(1, 8)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_an_adapter_is_found_by_its_step_where_steps_were_skipped(tmp_path: Path) -> None:
    run = skipping(tmp_path / "run").path
    found = {at: find_adapter(f"{run}@{at}").name for at in ("0", "3", "4", "6", "v5")}
    assert found == {"0": "v0", "3": "v3", "4": "v3", "6": "v5", "v5": "v5"}
    assert find_adapter(str(run)).name == "v5"
    assert find_adapter("run@6", parent=tmp_path).name == "v5"
    assert find_adapter(str(run / "adapters" / "v3")) == run / "adapters" / "v3"
    with pytest.raises(CheckpointError, match=r"of step 5; .* steps 0, 3, 4, 6 as v0, v3, v5"):
        find_adapter(f"{run}@5")
    with pytest.raises(CheckpointError, match="holds no run and no adapter"):
        find_adapter(str(tmp_path / "nowhere"))


def test_an_adapter_names_the_model_that_it_was_trained_on(tmp_path: Path) -> None:
    weights = read_adapter(adapter_of(skipping(tmp_path / "run")))
    assert weights.base_model == "some/model"
    weights.check_base("elsewhere/model")
    with pytest.raises(AdapterError, match=r"'some/model' and cannot be put on 'other'"):
        weights.check_base("other")
    old = begun(tmp_path / "old")
    old.write_adapters([adapter(0)])
    assert read_adapter(adapter_of(old)).base_model is None


def test_a_folder_without_a_run_or_an_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere holds no run: it has no config\.toml"):
        find_run(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="run holds no adapter yet"):
        adapter_of(begun(tmp_path / "run"))
    for place in ("a/" * 2045, "a" * 300):  # too long only with the name of a file, or by itself
        with pytest.raises(CheckpointError, match=r"cannot look for a run at a.*: File name too"):
            find_run(place)


def test_a_failure_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    folder.failure.mkdir()
    refused = pytest.raises(CheckpointError, match=r"failure\.txt cannot be written")
    with refused, failure_kept(folder):
        pytest.fail("the run began")


def test_a_failure_with_half_a_surrogate_pair_is_kept_and_raised(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with pytest.raises(ArenaError), failure_kept(folder):
        raise ArenaError("no move '\ud83d'")
    assert folder.failed_with() == "ArenaError: no move '?'"


def test_plays_are_written_whole_and_rewound(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    for step in (1, 2, 3):
        folder.add_episodes(step, [make_episode({"first": 1.0, "second": -1.0})] * 2)
        folder.write_adapters([adapter(step)])
    with folder.episodes.open("a") as file:
        file.write('{"step": 3, "are')
    (folder.adapters / ".v4.12-ab.unfinished").mkdir()
    folder.tidy()
    folder.rewind(step=2, versions={"policy": 2}, evaluated=None)
    lines = [json.loads(line) for line in folder.episodes.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 1, 2, 2]
    assert lines[0]["rewards"] == {"first": 1.0, "second": -1.0}
    assert sorted(path.name for path in folder.adapters.iterdir()) == ["v1", "v2"]


def test_a_full_disk_leaves_no_piece_of_a_play(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    folder.add_episodes(1, [make_episode({"player": 1.0})])
    before = folder.episodes.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*episodes\.jsonl: .*full"):
            folder.add_episodes(2, [make_episode({"player": 1.0})])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert folder.episodes.read_bytes() == before
