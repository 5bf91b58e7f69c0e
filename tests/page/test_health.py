"""What was wrong in the steps of a run."""

from pathlib import Path

from made_runs import add_lines, answered, made_run, page_of, step_line


def test_alarms_have_the_steps_in_which_they_were_raised(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    clipped = [step_line(step, clip_fraction=0.5) for step in (3, 4)]
    add_lines(folder.metrics, [*clipped, step_line(5), step_line(6, clip_fraction=0.9)])
    found = answered(page_of(parent=runs), "health", run="one")["alarms"]
    assert [(each["level"], each["metric"], each["spans"], each["now"]) for each in found] == [
        ("error", "clip_fraction", [[6, 6]], True),
        ("warning", "clip_fraction", [[3, 4]], False),
    ]
    assert found[1]["text"].startswith("clip_fraction is 0.5, at or above 0.3")
    assert "docs/run/alarms.md" in found[1]["text"]


def test_what_one_step_can_show_by_chance_is_an_alarm_in_the_second_such_step(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1)
    shares = enumerate([0.87, 0.95, 0.87, 0.86, 0.95, 0.4], start=2)
    add_lines(folder.metrics, [step_line(n, effective_sample_share=share) for n, share in shares])
    found = answered(page_of(parent=runs), "health", run="one")["alarms"]
    assert [(each["level"], each["spans"]) for each in found] == [
        ("error", [[7, 7]]),
        ("warning", [[5, 5]]),
    ]


def test_equal_rewards_of_many_steps_are_an_alarm_as_long_as_they_last(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1)
    steps = [step_line(40), step_line(41, equal_reward_steps=10.0), step_line(42)]
    add_lines(folder.metrics, steps)
    [found] = answered(page_of(parent=runs), "health", run="one")["alarms"]
    assert (found["level"], found["spans"], found["now"]) == ("warning", [[41, 41]], False)
    assert found["text"].startswith("equal_reward_steps is 10, at or above 10: every role earned")


def test_a_fork_has_its_newest_step_and_its_number_of_steps(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2)
    folder.metrics.unlink()
    add_lines(folder.metrics, [step_line(step) for step in range(401, 451)])
    found = answered(page_of(parent=runs), "health", run="one")
    assert (found["step"], found["steps"]) == (450, 50)


def test_skipped_steps_and_lost_tokens_are_listed(runs: Path) -> None:
    folder = made_run(runs / "one", steps=2, training__memory_limit_gib=4.0)
    more = {"discarded/stale_tokens": 40, "tokens_discarded": 40}
    add_lines(folder.metrics, [step_line(3, applied=0, **more)])
    found = answered(page_of(parent=runs), "health", run="one")
    assert found["skipped"] == {"applied": [3]}
    assert found["tokens"]["generated"] == 300
    assert found["tokens"]["opponents"] == 0
    rows = [(row["kind"], row["reason"], row["tokens"]) for row in found["reasons"]]
    assert rows == [("discarded", "stale", 40), ("filtered", "clip_skip", 30)]
    peaks = [[1, 0.5], [2, 0.5], [3, 0.5]]
    assert found["memory"] == {"peak": peaks, "highest": 0.5, "limit_gib": 4.0}


def test_the_highest_memory_of_many_steps_is_shown(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1)
    high = {"memory/peak_gib": 3.5}
    steps = [step_line(step, **(high if step == 400 else {})) for step in range(2, 1002)]
    add_lines(folder.metrics, steps)
    memory = answered(page_of(parent=runs), "health", run="one")["memory"]
    assert len(memory["peak"]) <= 500
    assert memory["highest"] == 3.5


def test_tokens_of_opponents_are_added_up_over_steps_and_arenas(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1)
    names = ("league/kuhn/opponent_tokens", "league/nim/opponent_tokens")
    add_lines(folder.metrics, [step_line(step, **dict.fromkeys(names, 7)) for step in (2, 3)])
    assert answered(page_of(parent=runs), "health", run="one")["tokens"]["opponents"] == 28


def test_each_policy_has_its_own_alarms(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1)
    add_lines(folder.metrics, [step_line(2, **{"rival/applied": 0, "rival/clip_fraction": 0.9})])
    found = answered(page_of(parent=runs), "health", run="one")
    assert [each["metric"] for each in found["alarms"]] == ["rival/clip_fraction", "rival/applied"]
    assert found["skipped"] == {"applied": [], "rival/applied": [2]}


def test_alarms_of_a_league_hold_until_it_is_judged_again(runs: Path) -> None:
    folder = made_run(runs / "one", steps=1, league__collapse_elo=80.0)
    calm = {"fall": 79.0, "forgotten": 0.0, "collusion": 0.0, "entropy": 0.2}
    judged = [
        (2, {"fall": 90.0, "forgotten": 2.0, "collusion": 0.6, "entropy": 0.2}),
        (4, {**calm, "draw_share": 0.96, "seat_gap": 0.9, "length": 2.5, "entropy": 0.05}),
    ]
    for prefix, (step, values) in zip(("league/", "league/rival/"), judged, strict=True):
        named = {f"{prefix}{name}": value for name, value in values.items()}
        add_lines(folder.metrics, [step_line(step, **named), step_line(step + 1)])
    found = answered(page_of(parent=runs), "health", run="one")["alarms"]
    levels = {each["metric"]: (each["level"], each["spans"], each["now"]) for each in found}
    rival = ("draw_share", "entropy", "length", "seat_gap")
    assert levels == {
        "league/fall": ("error", [[2, 2]], False),
        **{f"league/{name}": ("warning", [[2, 2]], False) for name in ("forgotten", "collusion")},
        **{f"league/rival/{name}": ("warning", [[4, 4]], True) for name in rival},
    }
    fall = next(each["text"] for each in found if each["metric"] == "league/fall")
    assert fall.startswith("league/fall is 90, at or above 80: the rating is")
    assert "docs/run/alarms.md" in fall
    [row] = answered(page_of(parent=runs), "runs")["runs"]
    assert {each["metric"] for each in row["alarms"]} == {f"league/rival/{name}" for name in rival}
