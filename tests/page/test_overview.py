"""The overview: how runs stand, and what of a damaged folder can be shown."""

import re
import shutil
from pathlib import Path

import pytest
from made_runs import add_lines, answered, made_run, page_of, step_line

import legos.page
from legos.errors import CheckpointError
from legos.page.shown import ShownRuns
from legos.run.lock import hold


def test_a_run_that_ended_has_its_figures(runs: Path) -> None:
    made_run(runs / "one", steps=4)
    [row] = answered(page_of(parent=runs), "runs")["runs"]
    assert (row["name"], row["state"], row["step"], row["steps"]) == ("one", "ended", 4, 4)
    [figure] = row["key"]
    assert figure["metric"] == "eval/exploitability"
    assert figure["points"] == [[0, 0.9], [4, 0.4]]
    assert not figure["larger_is_better"]
    assert (row["arena"], row["alarms"], row["problems"]) == ("nim", [], [])
    assert row["eta_s"] is None


def test_the_figure_of_a_long_run_begins_with_its_first_evaluation(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    lines = [{"step": step, "eval/exploitability": 1 / step} for step in range(5, 1000)]
    add_lines(folder.evaluations, lines)
    [row] = answered(page_of(parent=runs), "runs")["runs"]
    [figure] = row["key"]
    assert (figure["points"][0], figure["points"][-1]) == ([0, 0.9], [999, 1 / 999])
    assert len(figure["points"]) == 120


def test_a_running_run_has_the_time_that_is_left(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    folder.write_config(folder.config.read_text().split("\n", 1)[1].replace("= 4", "= 10"))
    with hold(folder.path):
        [row] = answered(page_of(parent=runs), "runs")["runs"]
    assert row["state"] == "running"
    assert row["eta_s"] == 6 * 30.0


def test_running_runs_come_first_and_repeated_ones_are_a_family(runs: Path) -> None:
    first = made_run(runs / "a", seed=1)
    made_run(runs / "b", seed=2)
    made_run(runs / "c", training__learning_rate=0.5)
    made_run(runs / "d", steps=8)
    with hold(first.path):
        page = page_of(parent=runs)
        rows, names = answered(page, "runs")["runs"], answered(page, "names")["names"]
    assert names == [row["name"] for row in rows]
    assert names[0] == "a"
    family = {row["name"]: row["family"] for row in rows}
    assert family["a"] == family["b"]
    assert len(set(family.values())) == 3


def test_what_a_running_run_adds_is_read_once_its_line_is_whole(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    page = page_of(parent=runs)
    assert answered(page, "runs")["runs"][0]["step"] == 4
    with folder.metrics.open("a") as file:
        file.write('{"step": 5, "reward_')
    assert answered(page, "runs")["runs"][0]["step"] == 4
    with folder.metrics.open("a") as file:
        file.write('mean": 0.75}\n')
    [row] = answered(page, "runs")["runs"]
    assert (row["step"], row["reward"], row["problems"]) == (5, 0.75, [])


def test_a_run_that_was_resumed_from_an_earlier_step_is_read_anew(runs: Path) -> None:
    folder = made_run(runs / "one", steps=9)
    page = page_of(parent=runs)
    answered(page, "runs")
    folder.metrics.unlink()
    add_lines(folder.metrics, [step_line(step) for step in (1, 2)])
    [curve] = answered(page, "curves", run="one", name="reward_mean")["series"]
    assert curve["x"] == [1, 2]


def test_a_damaged_line_is_named_and_left_out(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    with folder.metrics.open("a") as file:
        file.write("no JSON\n")
    add_lines(folder.metrics, [step_line(3)])
    [row] = answered(page_of(parent=runs), "runs")["runs"]
    assert row["step"] == 3
    assert row["problems"] == ["metrics.jsonl: line 3 cannot be read and is left out"]


def test_a_run_of_another_version_shows_what_it_can(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    folder.write_config("unheard_of = 3\n")
    page = page_of(parent=runs)
    [row] = answered(page, "runs")["runs"]
    assert row["step"] == 2
    assert row["key"][0]["points"][-1] == [2, 0.4]
    assert "unheard_of" in row["problems"][0]
    assert answered(page, "settings", run="one")["rows"] == []
    assert answered(page, "health", run="one")["tokens"]["generated"] == 200


def test_files_that_are_missing_are_no_error(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    for path in (folder.metrics, folder.evaluations):
        path.unlink()
    page = page_of(parent=runs)
    [row] = answered(page, "runs")["runs"]
    assert (row["step"], row["key"], row["problems"]) == (0, [], [])
    assert answered(page, "plays", run="one")["rows"] == []


def test_a_run_without_settings_is_listed_and_says_so(runs: Path) -> None:
    made_run(runs / "one", steps=2).config.unlink()
    [row] = answered(page_of(parent=runs), "runs")["runs"]
    assert (row["name"], row["step"]) == ("one", 2)
    assert row["problems"] == ["config.toml cannot be read: No such file or directory"]


def test_settings_that_are_removed_meanwhile_are_shown_no_more(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2, seed=7)
    page = page_of(parent=runs)
    assert "seed" in [row["name"] for row in answered(page, "settings", run="one")["rows"]]
    folder.config.unlink()
    assert answered(page, "settings", run="one")["rows"] == []


def test_two_paths_to_a_run_show_it_once(runs: Path) -> None:
    one = made_run(runs / "one", steps=2).path
    (runs / "latest").symlink_to(one)
    for page in (page_of(parent=runs), page_of(one, runs / "latest", runs)):
        assert [row["name"] for row in answered(page, "runs")["runs"]] == ["one"]


def test_a_failed_run_says_why(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    folder.failure.write_text("EngineError: no memory\n")
    [row] = answered(page_of(parent=runs), "runs")["runs"]
    assert (row["state"], row["failure"]) == ("failed", "EngineError: no memory")


def test_a_named_run_that_was_moved_says_so(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    page = page_of(folder.path)
    assert answered(page, "runs")["runs"][0]["state"] == "ended"
    shutil.move(folder.path, runs / "two")
    [row] = answered(page, "runs")["runs"]
    assert row["state"] == "missing"
    assert "it was moved or removed" in row["problems"][0]
    assert row["key"][0]["points"]  # what was read stays


def test_a_run_of_a_folder_that_was_moved_is_found_under_its_new_name(runs: Path) -> None:
    made_run(runs / "one", steps=2)
    page = page_of(parent=runs)
    answered(page, "runs")
    shutil.move(runs / "one", runs / "two")
    assert [row["name"] for row in answered(page, "runs")["runs"]] == ["two"]
    refused = page.get("/api/health", params={"run": "one"})
    assert refused.status_code == 404
    assert "there is no run 'one'" in refused.json()["error"]["message"]


def test_runs_of_the_same_name_have_the_folder_before_it(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        made_run(tmp_path / parent / "one", steps=1)
    page = page_of(tmp_path / "a", tmp_path / "b" / "one")
    assert {row["name"] for row in answered(page, "runs")["runs"]} == {"a/one", "b/one"}
    assert answered(page, "health", run="a/one")["steps"] == 1


def test_a_run_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere holds no run"):
        ShownRuns(["nowhere"], parent=tmp_path)


def test_the_browser_is_told_of_all_modules_at_once() -> None:
    static = Path(legos.page.__file__).parent / "static"
    apart = {"app.js", "theme.js", "report.js"}  # two that index.html starts, one of reports
    modules = {path.relative_to(static).as_posix() for path in static.rglob("*.js")} - apart
    index = (static / "index.html").read_text()
    assert set(re.findall(r'rel="modulepreload" href="([^"]+)"', index)) == modules
