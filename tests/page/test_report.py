"""A report of runs: what it shows of whole, damaged and unfinished runs, in one safe file."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_runs import add_lines, add_play, made_run, step_line

from legos.cli.process import main
from legos.errors import ConfigError
from legos.loop.trained import TrainedTurn
from legos.page.report import report_values
from legos.page.report_file import report_html
from legos.page.report_images import write_images
from legos.page.shown import ShownRuns
from legos.run.lock import hold

HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='t'\">"
)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def values_of(*paths: Path) -> dict[str, Any]:
    return report_values([*ShownRuns([str(path) for path in paths]).all().values()])


def data_of(html: str) -> Any:
    """The values in a file."""
    found = re.search(r'<script type="application/json" id="values">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found[1])


def test_a_run_has_its_evaluations_curves_plays_settings_and_commands(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4, training__learning_rate=0.5, arena="kuhn")
    for step in (1, 4):
        for reward in (0.0, 1.0, 0.5, 0.75):
            add_play(folder, step, f"{step} {reward}", reward=reward)
    values = values_of(folder.path)
    [column] = values["evaluations"]["columns"]
    assert column["figures"] == {"eval/exploitability": [[0.9, 0.9, 0.9], [0.4, 0.4, 0.4]]}
    assert column["steps"] == [[0], [4]]
    assert values["evaluations"]["larger_is_better"] == {"eval/exploitability": False}
    curves = {each["name"]: each["y"] for each in values["series"]}
    assert curves["reward_mean"] == [0.1, 0.2, 0.3, 0.4]
    told = [(each["why"], each["play"]["turns"][0]["said"]) for each in values["plays"]["one"]]
    assert told == [
        (why, f"{step} {reward}")
        for step in (1, 4)
        for why, reward in (("best", 1.0), ("typical", 0.5), ("worst", 0.0))
    ]
    rows = {row["name"]: row["values"] for row in values["settings"]["rows"]}
    assert {"training.learning_rate": ["0.5"], "arena": ["kuhn"]}.items() <= rows.items()
    [run] = values["runs"]
    assert run["missing"] == []
    assert "uv run legos train" in run["commands"][0]
    assert "--training.learning-rate 0.5" in run["commands"][0]
    assert run["commands"][1:] == [
        f"uv run legos eval {folder.path}",
        f"uv run legos train --resume {folder.path}",
    ]


def test_plays_of_evaluations_are_shown_where_there_are_two(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    add_play(folder, 1, "training")
    add_play(folder, 0, "before", evaluation=True)
    add_play(folder, 4, "after", evaluation=True)
    add_play(folder, 4, "broken", error="it broke", evaluation=True)
    add_play(folder, 4, "void", void=True, evaluation=True)
    shown = values_of(folder.path)["plays"]["one"]
    assert [(each["why"], each["play"]["turns"][0]["said"]) for each in shown] == [
        ("best, typical, worst", "before"),
        ("best, typical, worst", "after"),
        ("failed", "broken"),
    ]


def test_each_arena_of_a_mix_has_its_plays_and_figure(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    for arena in ("nim", "kuhn"):
        add_play(folder, 4, arena, arena=arena)
    line = {"eval/nim/exploitability": 0.5, "eval/kuhn/exploitability": 0.25, "eval/kuhn/x": None}
    folder.evaluations.unlink()
    add_lines(folder.evaluations, [{"step": 0, **line}])
    values = values_of(folder.path)
    assert [each["play"]["arena"] for each in values["plays"]["one"]] == ["kuhn", "nim"]
    assert [figure["metric"] for figure in values["runs"][0]["key"]] == [*line][:2]
    [column] = values["evaluations"]["columns"]
    assert column["figures"]["eval/kuhn/exploitability"] == [[0.25, 0.25, 0.25], None]
    assert column["figures"]["eval/kuhn/x"] == [None, None]


def test_runs_that_differ_in_their_seeds_have_one_column(runs: Path) -> None:
    for seed in (1, 2):
        folder = made_run(runs / f"a-{seed}", seed=seed)
        add_lines(folder.evaluations, [{"step": 5, "eval/exploitability": 0.1 * seed}])
    made_run(runs / "b", training__learning_rate=0.25)
    values = values_of(*(runs / name for name in ("a-1", "a-2", "b")))
    one, other = values["evaluations"]["columns"]
    assert (one["runs"], other["runs"]) == (["a-1", "a-2"], ["b"])
    assert one["figures"]["eval/exploitability"][1] == pytest.approx([0.15, 0.1, 0.2])
    assert [run["family"] for run in values["runs"]][:2] == [values["runs"][0]["family"]] * 2
    rows = {row["name"]: row["values"] for row in values["settings"]["rows"]}
    assert rows["seed"] == ["1", "2", "0"]


def test_what_a_run_lacks_is_said(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    folder.evaluations.unlink()
    add_lines(folder.metrics, [step_line(5, clip_fraction=0.9)])
    with folder.metrics.open("a") as file:
        file.write('nonsense\n{"step": 6, "rew')
    folder.episodes.write_text("nonsense\n")
    folder.failure.write_text("EngineError: no memory\n")
    [run] = values_of(folder.path)["runs"]
    assert (run["state"], run["failure"], run["step"]) == ("failed", "EngineError: no memory", 5)
    assert run["missing"] == [
        "metrics.jsonl: line 6 cannot be read and is left out",
        "the run was not evaluated",
        "episodes.jsonl: 1 damaged lines are left out",
        "no play of the run is stored",
    ]
    assert [alarm["metric"] for alarm in run["history"]] == ["clip_fraction"]


def test_a_run_that_goes_on_and_one_that_has_only_begun(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    begun = made_run(runs / "begun", steps=4)
    for path in (begun.metrics, begun.evaluations):
        path.unlink()
    begun.write_config("unheard_of = 3\n")
    with hold(folder.path):
        one, other = values_of(folder.path, begun.path)["runs"]
    assert one["missing"][0] == "the run is going on; this is what it had written at step 4"
    assert "unheard_of" in other["missing"][0]
    assert other["missing"][1:3] == ["the run has no steps yet", "the run was not evaluated"]


def test_long_plays_are_cut_so_that_the_file_stays_small(runs: Path) -> None:
    folder = made_run(runs / "one", steps=4)
    for step in (1, 4):
        add_play(folder, step, "a" * 100_000, question="b" * 100_000, advantage=0.5)
    html = report_html(values_of(folder.path), plotly="none")
    assert len(html) < 400_000
    [turn] = data_of(html)["plays"]["one"][0]["play"]["turns"]
    [message] = turn["messages"]
    for text in (turn["said"], message["content"]):
        assert "characters are left out" in text
    assert (turn["tokens"], turn["versions"], turn["trained"]) == (100_000, [3], {"advantage": 0.5})
    assert "token_ids" not in turn


def test_a_long_answer_that_trained_nothing_is_shown(runs: Path) -> None:
    folder = made_run(runs / "one")
    episode = add_play(folder, 1, "a" * 100)
    trained = {episode.rollout_name("only"): [TrainedTurn(reason="stale")]}
    folder.add_episodes(2, [episode], trained=trained)
    plays = values_of(folder.path)["plays"]["one"]
    assert [each["play"]["turns"][0]["trained"] for each in plays] == [None, {"advantage": None}]


def test_plays_that_do_not_fit_are_missed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_play(made_run(runs / "one"), 1, "an answer", advantage=0.5)
    monkeypatch.setattr("legos.page.report._MOST_BYTES", 1)
    values = values_of(runs / "one")
    assert values["plays"] == {}
    [told] = values["runs"][0]["missing"]
    assert told == "its plays do not fit into the file; `legos view` shows them"


def test_long_notes_are_cut_like_other_texts(runs: Path) -> None:
    folder = made_run(runs / "one")
    add_play(folder, 1, "an answer", notes=("n" * 2_000_000,))
    [sample] = values_of(folder.path)["plays"]["one"]
    assert "characters are left out" in sample["play"]["notes"][0]


def test_texts_are_data_and_only_the_scripts_of_the_page_run(runs: Path) -> None:
    folder = made_run(runs / "<b>one", steps=4)
    add_play(folder, 1, HOSTILE, question=HOSTILE)
    html = report_html(values_of(folder.path), plotly="none")
    assert HOSTILE not in html
    assert "<b>" not in html
    assert html.count("<script") == 3
    assert data_of(html)["plays"]["<b>one"][0]["play"]["turns"][0]["said"] == HOSTILE
    policy = re.search(r"script-src ([^;]*);", html)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]


@pytest.mark.slow
def test_the_command_writes_the_file_and_pictures(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run(runs / "one", steps=4)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "one", "--plotly", "none", "--images", "svg", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["report"], told["in"]) == ("report-one.html", "report-one-images")
    assert told["missing"] == {"one": "no play of the run is stored"}
    picture = (tmp_path / "report-one-images" / "eval-exploitability.svg").read_text()
    assert picture.startswith("<?xml")
    assert main(["report", "one", "--plotly", "inline", "--out", "x.html"]) == 0
    assert 4.5e6 < (tmp_path / "x.html").stat().st_size < 6.5e6
    assert (main(["report"]), main(["report", "one", "--out", "x.md"])) == (2, 2)
    told = capsys.readouterr().err
    assert "report needs a run" in told
    assert "--out is x.md; expected the name of a web page" in told


@pytest.mark.slow
def test_names_in_pictures_are_no_formulas(runs: Path, tmp_path: Path) -> None:
    name = "eval/a$\\frac$ b/reward_mean"
    for run in ("_one$\\frac$", "two"):
        add_lines(made_run(runs / run).evaluations, [{"step": 9, name: 0.5}])
    values = values_of(*runs.iterdir()) | {"names": [name]}
    [picture] = write_images(values, tmp_path / "r.html", "svg")
    assert picture.name == "eval-a--frac--b-reward_mean.svg"
    assert "<!--  _one$\\frac$, two -->" in picture.read_text()


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    made_run(runs / "one", steps=4)
    values = values_of(runs / "one")
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ConfigError, match=r"plotly is not installed, .*--plotly none"):
        report_html(values, plotly="inline")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH")
@pytest.mark.parametrize("plotly", ["none", pytest.param("inline", marks=pytest.mark.nightly)])
def test_a_browser_shows_hostile_text_as_text(runs: Path, tmp_path: Path, plotly: Any) -> None:
    folders = [made_run(runs / f"one-{seed}", steps=4, seed=seed) for seed in (0, 1)]
    add_play(folders[0], 1, HOSTILE, question=HOSTILE)
    file = tmp_path / "report.html"
    file.write_text(report_html(values_of(*(each.path for each in folders)), plotly=plotly))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"]
    command = [f"{CHROMIUM}", *options, "--dump-dom", file.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    main_part = shown[shown.index("<main") : shown.index("</main>")]
    assert "<title>one-0, one-1 · legos</title>" in shown
    assert "<img" not in main_part
    assert "<script" not in main_part
    assert main_part.count("&lt;img src=x onerror=") == 2
    assert "mean of 2" in main_part
    assert ("js-plotly-plot" in main_part) == (plotly == "inline")
    assert ("polyline" in main_part.split("Curves")[1]) == (plotly == "none")
