"""The table on a terminal, and the plain lines elsewhere."""

import io
import math
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from legos.track.console import ConsoleTracker


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(*, every: int = 10) -> tuple[ConsoleTracker, io.StringIO]:
    out = io.StringIO()
    return ConsoleTracker(num_steps=25, console=Console(file=out), every=every), out


def terminal(width: int, clock: Clock) -> tuple[ConsoleTracker, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None, height=50)
    return ConsoleTracker(num_steps=25, console=console, clock=clock), out


def last_frame(out: io.StringIO) -> list[str]:
    """The lines of the newest drawing."""
    frame = out.getvalue().rpartition("step ")[2]
    return ("step " + frame).splitlines()


def test_elsewhere_a_line_for_the_first_every_tenth_evaluations_and_the_last() -> None:
    tracker, out = plain()
    for step in range(1, 24):
        metrics: dict[str, float | int | None] = {"reward_mean": step / 100, "loss": -0.5}
        if step == 13:
            metrics |= {"eval/optimal_move_rate": 0.75, "eval/exploitability": None}
        tracker.log(metrics, step=step)
    tracker.close()
    assert out.getvalue().splitlines() == [
        "step 1/25  reward +0.010  loss -0.5000",
        "step 10/25  reward +0.100  loss -0.5000",
        "step 13/25  reward +0.130  loss -0.5000  optimal 0.7500",
        "step 20/25  reward +0.200  loss -0.5000",
        "step 23/25  reward +0.230  loss -0.5000",
    ]


def test_the_reward_of_an_evaluation_by_play_has_a_column_of_its_own() -> None:
    tracker, out = plain(every=1)
    tracker.log({"reward_mean": 0.25}, step=1)
    tracker.log({"reward_mean": 0.5, "eval/reward_mean": 0.75}, step=2)
    tracker.close()
    assert out.getvalue().splitlines() == [
        "step 1/25  reward +0.250",
        "step 2/25  reward +0.500  evaluated +0.750",
    ]


def test_elsewhere_the_last_line_is_not_repeated() -> None:
    tracker, out = plain(every=1)
    tracker.log({"loss": 1.0}, step=1)
    tracker.close()
    assert out.getvalue() == "step 1/25  loss +1.0000\n"


@given(
    gaps=st.lists(st.sampled_from([0.1, 3.0, 20.0]), min_size=25, max_size=25),
    late=st.lists(st.integers(0, 4), min_size=25, max_size=25),
    stop=st.integers(1, 25),
)
def test_no_step_has_two_lines(gaps: list[float], late: list[int], stop: int) -> None:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=200)
    tracker = ConsoleTracker(num_steps=25, console=console, evaluate_every=5, clock=clock)
    tracker.log({"eval/reward_mean": 0.0}, step=0)
    waiting: dict[int, int] = {}  # evaluated step -> the step after which its metrics come
    for step in range(1, stop + 1):
        clock.now += gaps[step - 1]
        tracker.log({"loss": 0.5}, step=step)
        if step % 5 == 0:
            waiting[step] = step + late[step - 1]
        for evaluated in [one for one, end in waiting.items() if end <= step]:
            del waiting[evaluated]
            tracker.log({"eval/reward_mean": 0.5}, step=evaluated)
    tracker.close()
    steps = re.findall(r"^step (\d+)/", out.getvalue(), re.MULTILINE)
    assert len(steps) == len(set(steps))
    assert f"{stop}" in steps


def test_steps_that_were_not_applied_are_counted() -> None:
    tracker, out = plain(every=1)
    for step, applied in enumerate((1, 0, 1), 1):
        metrics = {"loss": 1.0, "applied": 1, "critic/applied": applied}  # of the second policy
        tracker.log(metrics, step=step)
    tracker.close()
    assert out.getvalue().splitlines() == [
        "step 1/25  loss +1.0000",
        "step 2/25  loss +1.0000  skipped 1",
        "step 3/25  loss +1.0000  skipped 1",
    ]
    clock = Clock()
    live, seen = terminal(120, clock)
    live.log({"loss": 1.0, "applied": 0}, step=1)
    live.close()
    assert "1 of 25 steps, 1 skipped" in " ".join(seen.getvalue().split())


def test_long_lines_are_not_wrapped_elsewhere() -> None:
    tracker, out = plain()
    names = ("reward_mean", "loss", "entropy", "kl_divergence", "clip_fraction", "staleness_max")
    tracker.log(dict.fromkeys((*names, "samples_per_step", "play/moves_per_s"), 1.0), step=1)
    tracker.close()
    assert len(out.getvalue().splitlines()) == 1


def test_terminal_shows_newest_steps_below_evaluations() -> None:
    clock = Clock()
    tracker, out = terminal(120, clock)
    for step in range(1, 26):
        clock.now += 1
        metrics: dict[str, float | int | None] = {"reward_mean": step / 100}
        if step in (1, 5):
            metrics["eval/optimal_move_rate"] = step / 10
        tracker.log(metrics, step=step)
    tracker.close()
    header, *rows, reward, optimal, caption = last_frame(out)[:16]
    assert header.split() == ["step", "reward", "optimal"]
    assert [int(row.split()[0]) for row in rows] == [1, 5, *range(16, 26)]
    assert rows[1].split() == ["5", "+0.050", "0.5000"]
    assert reward.split()[::2] == ["reward", "+0.010", "+0.250"]
    assert optimal.split() == ["optimal", "▁█", "0.1000", "→", "0.5000"]
    assert caption.strip() == "25 of 25 steps"


def test_a_terminal_shows_metrics_over_the_whole_run_as_bars() -> None:
    clock = Clock()
    tracker, out = terminal(120, clock)
    for step in range(1, 65):  # two steps are one bar
        entropy = math.nan if step < 3 else 1.0
        tracker.log({"reward_mean": float(step), "entropy": entropy}, step=step)
    tracker.close()
    rows = [line.split() for line in last_frame(out) if "→" in line]
    assert [row[0] for row in rows] == ["reward", "entropy"]
    bars = rows[0][1]
    assert len(bars) == 32
    assert bars[0] == "▁"
    assert bars[-1] == "█"
    assert bars == "".join(sorted(bars))
    assert rows[1][1:] == ["▁" * 32, "1.000", "→", "1.000"]


def test_terminal_is_redrawn_at_most_ten_times_a_second_and_at_the_end() -> None:
    clock = Clock()
    tracker, out = terminal(120, clock)
    tracker.log({"loss": 1.0}, step=1)
    drawn = out.getvalue()
    assert "+1.0000" in drawn
    clock.now += 0.05
    tracker.log({"loss": 2.0}, step=2)
    assert out.getvalue() == drawn
    tracker.close()
    assert "+2.0000" in out.getvalue()
    tracker.close()


def test_narrow_terminal_loses_the_least_important_columns() -> None:
    clock = Clock()
    names = ("reward_mean", "loss", "entropy", "kl_divergence", "clip_fraction", "staleness_max")
    metrics: dict[str, float | int | None] = dict.fromkeys(names, 1.0)
    metrics |= {"samples_per_step": 64, "play/moves_per_s": 1234.0, "eval/optimal_move_rate": 0.5}
    for width, titles in (
        (120, "step reward loss entropy KL clipped stale samples moves/s optimal"),
        (60, "step reward loss entropy KL clipped optimal"),
        (20, "step reward"),
    ):
        tracker, out = terminal(width, clock)
        tracker.log(metrics, step=1)
        tracker.close()
        header, row, *_ = last_frame(out)
        assert header.split() == titles.split()
        assert len(row.split()) == len(titles.split())
        assert "…" not in header + row


def test_figures_that_come_later_are_shown_with_their_step() -> None:
    clock = Clock()
    live, drawn = terminal(120, clock)
    tracker, out = plain()
    for shown in (tracker, live):
        shown.log({"eval/optimal_move_rate": 0.25}, step=0)
        for step in range(1, 6):
            clock.now += 1
            shown.log({"reward_mean": step / 100}, step=step)
        clock.now += 1
        shown.log({"eval/optimal_move_rate": 0.75}, step=3)
        shown.close()
    assert out.getvalue().splitlines() == [
        "step 0/25  optimal 0.2500",
        "step 1/25  reward +0.010",
        "step 3/25  reward +0.030  optimal 0.7500",
        "step 5/25  reward +0.050",
    ]
    _, *rows, _, _, caption = last_frame(drawn)[:10]
    assert [row.split() for row in rows] == [
        ["0", "0.2500"],
        ["1", "+0.010"],
        ["2", "+0.020"],
        ["3", "+0.030", "0.7500"],
        ["4", "+0.040"],
        ["5", "+0.050"],
    ]
    assert caption.strip() == "5 of 25 steps"


def test_figures_of_a_step_that_is_shown_no_more_stand_above() -> None:
    clock = Clock()
    tracker, out = terminal(120, clock)
    for step in range(1, 26):
        clock.now += 1
        tracker.log({"reward_mean": step / 100}, step=step)
    clock.now += 1
    tracker.log({"eval/optimal_move_rate": 0.75}, step=5)
    tracker.close()
    _, *rows, _ = last_frame(out)[:13]
    assert [int(row.split()[0]) for row in rows] == [5, *range(16, 26)]
    assert rows[0].split() == ["5", "0.7500"]


def test_a_step_that_is_evaluated_next_to_training_has_one_line() -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(num_steps=25, console=Console(file=out), evaluate_every=10)
    for step in range(1, 25):
        tracker.log({"reward_mean": step / 100}, step=step)
        if step == 12:
            tracker.log({"eval/reward_mean": 0.75}, step=10)
    tracker.close()
    assert out.getvalue().splitlines() == [
        "step 1/25  reward +0.010",
        "step 10/25  reward +0.100  evaluated +0.750",
        "step 24/25  reward +0.240",  # that of step 20 is still evaluated
    ]


def test_every_slow_step_has_a_line_and_the_time_left() -> None:
    clock, out = Clock(), io.StringIO()
    tracker = ConsoleTracker(num_steps=25, console=Console(file=out), clock=clock)
    for step, seconds in enumerate((60, 120, 180, 1), start=1):
        clock.now += seconds
        tracker.log({"loss": 1.0}, step=step)
    assert out.getvalue().splitlines() == [
        "step 1/25  loss +1.0000  24 min left",
        "step 2/25  loss +1.0000  34 min left",
        "step 3/25  loss +1.0000  44 min left",
    ]
    clock.now += 7200
    tracker.log({"loss": 1.0}, step=5)
    assert out.getvalue().splitlines()[-1] == "step 5/25  loss +1.0000  8.4 h left"


def test_a_resumed_run_counts_its_own_steps_for_the_time_left() -> None:
    clock, out = Clock(), io.StringIO()
    tracker = ConsoleTracker(num_steps=25, console=Console(file=out), clock=clock)
    clock.now += 120
    tracker.log({"loss": 1.0}, step=21)
    assert out.getvalue() == "step 21/25  loss +1.0000  8 min left\n"


def test_an_evaluation_that_a_resumed_run_makes_first_is_no_step() -> None:
    clock, out = Clock(), io.StringIO()
    tracker = ConsoleTracker(num_steps=25, console=Console(file=out, width=200), clock=clock)
    for seconds, metrics, step in ((600, {"eval/reward_mean": 0.5}, 18), (60, {"loss": 1.0}, 21)):
        clock.now += seconds
        tracker.log(metrics, step=step)
    assert out.getvalue().splitlines() == [
        "step 18/25  evaluated +0.500",
        "step 21/25  loss +1.0000  4 min left",
    ]


def test_what_the_run_does_is_shown_where_no_step_ends() -> None:
    clock, out = Clock(), io.StringIO()
    tracker = ConsoleTracker(num_steps=25, console=Console(file=out), clock=clock)
    live, drawn = terminal(80, clock)
    for second in range(100):
        clock.now = float(second)
        for shown in (tracker, live):
            shown.wait(f"playing for step 1, {second} s so far")
    assert out.getvalue().splitlines() == [
        "playing for step 1, 2 s so far",
        "playing for step 1, 22 s so far",
        "playing for step 1, 66 s so far",
    ]
    tracker.log({"loss": 1.0}, step=1)
    assert out.getvalue().splitlines()[3].startswith("step 1/25  loss +1.0000")
    clock.now = 109.0
    tracker.wait("training step 2")
    assert out.getvalue().splitlines()[4:] == ["training step 2"]
    assert "run of 25 steps, playing for step 1, 99 s so far" in drawn.getvalue()
    live.log({"loss": 1.0}, step=1)
    live.close()
    _, row, caption, *_ = last_frame(drawn)
    assert (row.split(), caption.strip()) == (["1", "+1.0000"], "1 of 25 steps, 44 min left")


def test_arenas_of_text_show_tokens_a_second() -> None:
    for tokens, shown in ((400.0, "tokens/s 400"), (40.0, "moves/s 10")):
        tracker, out = plain()
        tracker.log({"play/moves_per_s": 10.0, "play/tokens_per_s": tokens}, step=1)
        tracker.log({"play/moves_per_s": 10.0, "play/tokens_per_s": 79.0}, step=10)
        assert out.getvalue().splitlines()[0] == f"step 1/25  {shown}"
        assert "79" in out.getvalue() if tokens == 400.0 else "tokens" not in out.getvalue()


def test_imitation_which_samples_nothing_shows_no_speed_of_play() -> None:
    tracker, out = plain()
    for step, moves in ((1, 0.0), (2, 0.1)):
        tracker.log({"loss": 1.0, "play/moves_per_s": moves, "play/tokens_per_s": 0.0}, step=step)
    tracker.close()
    assert out.getvalue().splitlines() == [f"step {n}/25  loss +1.0000" for n in (1, 2)]


def test_a_divergence_that_is_not_computed_is_not_shown_as_0() -> None:
    tracker, out = plain(every=1)
    for step, divergence in ((1, 0.0), (2, 0.25), (3, 0.0)):
        tracker.log({"loss": 1.0, "kl_divergence": divergence}, step=step)
    assert out.getvalue().splitlines() == [
        "step 1/25  loss +1.0000",
        "step 2/25  loss +1.0000  KL 0.2500",
        "step 3/25  loss +1.0000  KL 0.0000",  # after a refresh of the reference
    ]


def test_each_arena_of_a_mix_has_its_own_columns() -> None:
    metrics = {"reward_mean": 0.5, "batches/nim/reward_mean": 1.0, "batches/kuhn/reward_mean": 0.25}
    for arenas, expected in (
        (("nim", "kuhn"), "step 1/2  reward +0.500  nim reward +1.000  kuhn reward +0.250"),
        (("nim",), "step 1/2  reward +0.500"),
    ):
        out = io.StringIO()
        console = Console(file=out, width=200)
        tracker = ConsoleTracker(num_steps=2, console=console, arenas=arenas)
        tracker.log(metrics, step=1)
        tracker.close()
        assert out.getvalue().splitlines()[-1] == expected


def test_names_of_arenas_are_no_markup() -> None:
    for console in (Console(file=io.StringIO()), Console(file=io.StringIO(), force_terminal=True)):
        tracker = ConsoleTracker(num_steps=2, console=console, arenas=["[red]one[/]", "two"])
        tracker.log({"batches/[red]one[/]/reward_mean": 0.5}, step=1)
        tracker.close()
        assert "[red]one[/] reward" in console.file.getvalue()  # pyrefly: ignore[missing-attribute]
