"""Metrics of several runs along an axis, and the settings in which the runs differ."""

from pathlib import Path

from made_runs import add_lines, answered, made_run, page_of, step_line

from legos.page.curves import chosen_names


def test_curves_of_two_runs_with_the_evaluation_before_the_first_step(runs: Path) -> None:
    made_run(runs / "a", steps=2)
    made_run(runs / "b", steps=3)
    page = page_of(parent=runs)
    both = {"run": ["a", "b"], "name": ["eval/exploitability", "reward_mean"]}
    found = answered(page, "curves", **both)["series"]
    curves = {(each["run"], each["name"]): (each["x"], each["y"]) for each in found}
    assert curves["a", "eval/exploitability"] == ([0, 2], [0.9, 0.4])
    assert curves["b", "reward_mean"] == ([1, 2, 3], [0.1, 0.2, 0.3])


def test_the_axis_can_be_tokens_or_minutes(runs: Path) -> None:
    made_run(runs / "a", steps=4)
    page = page_of(parent=runs)
    places = {
        axis: answered(page, "curves", run="a", name="eval/exploitability", axis=axis)["series"]
        for axis in ("tokens", "minutes")
    }
    assert places["tokens"][0]["x"] == [0, 400]
    assert places["minutes"][0]["x"] == [0, 2.0]
    refused = page.get("/api/curves", params={"run": "a", "name": "loss", "axis": "miles"})
    assert refused.status_code == 400
    assert "'step', 'tokens' or 'minutes'" in refused.json()["error"]["message"]


def test_a_metric_that_is_missing_or_not_finite_leaves_a_gap(runs: Path) -> None:
    folder = made_run(runs / "a", steps=2)
    add_lines(folder.metrics, [step_line(3, reward_mean=None), step_line(4, late=7.0)])
    page = page_of(parent=runs)
    names = answered(page, "metrics", run="a")["names"]
    assert names[0] == "eval/exploitability"
    assert "late" in names
    found = answered(page, "curves", run="a", name=["reward_mean", "late", "none"])["series"]
    assert [each["x"] for each in found] == [[1, 2, 4], [4]]


def test_lines_with_an_evaluation_alone_are_no_steps(runs: Path) -> None:
    folder = made_run(runs / "a", steps=2)
    add_lines(folder.metrics, [{"step": 2, "eval/exploitability": 0.1}])
    [curve] = answered(page_of(parent=runs), "curves", run="a", name="eval/exploitability")[
        "series"
    ]
    assert curve["y"] == [0.9, 0.4]


def test_a_metric_of_every_step_is_not_that_of_the_evaluated_steps_alone(runs: Path) -> None:
    folder = made_run(runs / "a", steps=3)
    folder.metrics.unlink()
    folder.evaluations.unlink()
    add_lines(folder.metrics, [step_line(n, policy_version=v) for n, v in ((1, 1), (2, 1), (3, 2))])
    add_lines(folder.evaluations, [{"step": 3, "policy_version": 2, "eval/reward_mean": 0.5}])
    [curve] = answered(page_of(parent=runs), "curves", run="a", name="policy_version")["series"]
    assert (curve["x"], curve["y"]) == ([1, 2, 3], [1, 1, 2])


def test_as_many_curves_as_a_page_can_ask_for(runs: Path) -> None:
    folder = made_run(runs / "a", steps=1)
    names = [f"arena/metric{number}" for number in range(300)]
    add_lines(folder.metrics, [step_line(2, **dict.fromkeys(names, 1.0))])
    found = answered(page_of(parent=runs), "curves", run="a", name=names)["series"]
    assert [each["name"] for each in found] == names


def test_a_run_that_is_named_twice_has_one_column(runs: Path) -> None:
    made_run(runs / "a", seed=7)
    found = answered(page_of(parent=runs), "settings", run=["a", "a"])
    assert found["runs"] == ["a"]
    assert {row["name"]: row["values"] for row in found["rows"]}["seed"] == ["7"]


def test_settings_that_differ_in_a_late_digit_differ(runs: Path) -> None:
    made_run(runs / "a", training__learning_rate=0.001)
    made_run(runs / "b", training__learning_rate=0.0010000004)
    rows = answered(page_of(parent=runs), "settings", run=["a", "b"])["rows"]
    assert [row["values"] for row in rows] == [["0.001", "0.0010000004"]]


def test_settings_of_two_runs_that_differ(runs: Path) -> None:
    made_run(runs / "a", training__learning_rate=0.5)
    made_run(runs / "b", training__learning_rate=0.25, seed=7)
    page = page_of(parent=runs)
    rows = answered(page, "settings", run=["a", "b"])["rows"]
    assert {row["name"]: row["values"] for row in rows} == {
        "seed": ["0", "7"],
        "training.learning_rate": ["0.5", "0.25"],
    }
    chosen = answered(page, "settings", run="b")["rows"]
    assert {"seed", "training.learning_rate"} <= {row["name"] for row in chosen}


def test_curves_of_every_policy_and_arena_are_chosen_first() -> None:
    names = ["loss", "critic/loss", "batches/nim/reward_mean", "league/entropy", "critic/lr"]
    assert chosen_names(names) == names[:3]
