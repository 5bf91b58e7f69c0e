"""``open_run``: columns, plays, settings and states of a run, also while it goes on."""

from pathlib import Path

import numpy as np
import pytest
from made_records import make_episode

from legos import open_run
from legos.config.resolve import resolve
from legos.errors import CheckpointError, ConfigError
from legos.run.checkpoint import write_checkpoint
from legos.run.folder import RunFolder
from legos.run.lock import hold


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "nim-1")
    chosen = {"loop.steps": 2, "training.clip_range": 0.3}
    with folder.new_run(resolve(overrides=chosen).toml()):
        pass
    return folder


def test_metrics_are_columns_with_evaluations_at_their_steps(folder: RunFolder) -> None:
    run = open_run(folder.path)
    assert len(run.metrics) == 0
    append(folder.metrics, '{"step": 0, "eval/win": 0.5}\n{"step": 1, "loss": 0.25, "n": 3}\n')
    append(folder.metrics, '{"step": 2, "loss": null, "n": 4}\n{"step": 1, "eval/win": 1.0}\n')
    append(folder.metrics, 'nonsense\n{"step": 3, "lo')
    table = run.metrics
    assert list(table) == ["step", "eval/win", "loss", "n"]
    assert table["step"].tolist() == [0, 1, 2]
    assert table["step"].dtype == np.int64
    np.testing.assert_array_equal(table["loss"], [np.nan, 0.25, np.nan])
    np.testing.assert_array_equal(table["eval/win"], [0.5, 1.0, np.nan])
    assert [*table.matching("^eval/")] == ["step", "eval/win"]
    assert run.metrics is table
    assert run.problems == ["metrics.jsonl: line 5 cannot be read and is left out"]
    append(folder.metrics, 'ss": 1.5}\n')
    assert run.metrics["loss"].tolist()[-1] == 1.5
    folder.metrics.write_text('{"step": 1, "loss": 9.0}\n')  # as a resumed run leaves it
    assert run.metrics["loss"].tolist() == [9.0]
    assert run.problems == []


def test_values_of_any_kind_and_steps_in_any_order_become_columns(folder: RunFolder) -> None:
    run = open_run(folder.path)
    append(folder.metrics, '{"step": 3, "n": 1, "huge": 1' + "0" * 400 + ', "text": "a"}\n')
    append(folder.metrics, '{"step": 1, "n": 2}\n{"step": true, "n": 5}\n{"step": 3, "late": 7}\n')
    table = run.metrics
    assert table["step"].tolist() == [1, 3]
    assert table["n"].tolist() == [2, 1]
    assert table["n"].dtype == np.float64
    assert table.points("late") == [(3, 7.0)]
    assert table.newest == {"step": 3, "n": 1, "late": 7.0}
    assert table.points("huge") == table.points("none") == []
    assert run.problems == ["metrics.jsonl: line 3 cannot be read and is left out"]
    append(folder.metrics, '{"step": 4, "n": 0.5}\n')
    assert (table["n"].tolist(), run.metrics["n"].tolist()) == ([2.0, 1.0], [2.0, 1.0, 0.5])
    assert run.metrics.points("n", most=2) == [(1, 2.0), (4, 0.5)]
    assert run.metrics.of_version(1) == {}


def test_some_points_of_a_metric_have_its_first_and_its_last(folder: RunFolder) -> None:
    lines = (
        f'{{"step": {step}, "n": {step}, "policy_version": {step // 2}}}\n' for step in range(10)
    )
    append(folder.metrics, "".join(lines))
    table = open_run(folder.path).metrics
    assert [step for step, _ in table.points("n", most=3)] == [0, 4, 9]
    assert table.of_version(2) == {"step": 5, "n": 5.0, "policy_version": 2.0}
    assert table.of_version(7) == {}


def test_plays_are_read_when_they_are_asked_for(folder: RunFolder) -> None:
    run = open_run("nim-1", folder.path.parent)
    assert len(run.episodes()) == 0
    plays = [make_episode({"first": float(n), "second": -float(n)}) for n in range(4)]
    for step, play in enumerate(plays, start=1):
        folder.add_episodes(step, [play], full_at=900)
    found = run.episodes(role="first", reward=(1.0, None))
    assert [play.rewards["first"] for play in found] == [1.0, 2.0, 3.0]
    assert [found[-1].number, found[0].number, len(found[1:])] == [4, 2, 2]
    assert run.episode(-1).step == 4
    assert [play.number for play in run.episodes(reward=2.0, role="first")] == [3]
    with pytest.raises(CheckpointError, match="no play 9; it has 1 to 4"):
        run.episode(9)
    folder.plays.pack(0)
    assert [play.number for play in found] == [
        n for n in (2, 3, 4) if n >= run.episodes().numbers[0]
    ]
    run.close()
    assert len(run.search(text="?").numbers) == len(run.episodes())


def test_a_run_of_another_version_has_all_but_its_settings(folder: RunFolder) -> None:
    folder.write_config("unheard_of = 3\n")
    append(folder.metrics, '{"step": 0, "eval/win": 0.5}\n{"step": 1, "loss": 0.25}\n')
    run = open_run(folder.path)
    assert repr(run) == "<run nim-1: stopped, 1 steps>"
    with pytest.raises(ConfigError, match="unheard_of"):
        run.config  # noqa: B018


def test_settings_states_checkpoints_and_stalls(folder: RunFolder) -> None:
    run = open_run(folder.path)
    assert run.state == "stopped"
    assert repr(run) == "<run nim-1: stopped, 0 steps>"
    assert run.config.chosen == {"loop.steps": 2, "training.clip_range": 0.3}
    assert run.config.sources["seed"] == "default"
    other = RunFolder(folder.path.with_name("nim-2"))
    with other.new_run(resolve(overrides={"loop.steps": 2}).toml()):
        pass
    there = open_run(other.path)
    assert run.config.differences(there.config) == {
        "training.clip_range": (0.3, there.config.values["training.clip_range"])
    }
    append(folder.evaluations, '{"step": 2, "eval/win": 1.0}\n')
    assert run.state == "ended"
    with hold(folder.path):
        assert run.state == "running"
    folder.failure.write_text("ArenaError: no\n")
    assert (run.state, run.failure, there.failure) == ("failed", "ArenaError: no", None)
    write_checkpoint(folder.checkpoints, 2, lambda _: {}, keep=1)
    (folder.checkpoints / "step-000001").symlink_to("removed")  # by the run, while it is read
    [checkpoint] = run.checkpoints
    assert (checkpoint.step, checkpoint.path.name) == (2, "step-000002")
    assert run.stalls == []
    for second in (1, 2):
        append(
            folder.stalls,
            f"2026-11-26T13:00:0{second}.5+01:00 the event loop has not turned for 10 s, "
            "at a.py:3\n"
            'thread main:\n  File "a.py"\n\n',
        )
    first, second = run.stalls
    assert (first.at.second, second.at.second, first.at.utcoffset() is None) == (1, 2, False)
    assert first.text == "the event loop has not turned for 10 s, at a.py:3"
    assert first.stacks == 'thread main:\n  File "a.py"'
