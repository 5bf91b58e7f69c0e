"""The benches end, and hold the figures that they promise."""

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from bench import command
from bench.command import Compared, Ratio, explained, judged
from bench.exact import exact_evaluation
from bench.rounds import Workload
from launched import finished

from legos.errors import ConfigError

FOLDER = Path(__file__).parent
EACH_HELP = """
import contextlib, runpy, sys
folder, *names = sys.argv[1:]
for name in names:
    sys.path[0] = folder  # as where Python starts a script of this folder
    for module in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[module]
    sys.argv = [f"{folder}/{name}.py", "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
"""
BENCHES = (
    *("arenas", "async", "cuda", "engine", "league", "league_chat", "loop"),
    *("peers", "ray", "real", "server", "train"),
)


def test_peers_are_only_for_some_benches() -> None:
    def bench_nothing(work: Workload) -> dict[str, object]:
        raise AssertionError(work)

    with pytest.raises(ConfigError, match="compares with no other program"):
        command.run(bench_nothing, {}, ["--peer", "vllm-mlx"])


def test_the_options_make_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Compared] = []

    def bench_nothing(work: Compared) -> dict[str, object]:
        seen.append(work)
        return {"ratios": {}}

    with pytest.raises(SystemExit, match="0"):
        command.run(
            bench_nothing,
            {},
            ["--seconds", "3", "--quick", "--peer", "a", "--peer", "b", "--json"],
        )
    assert seen == [Compared(3.0, True, (Path("a"), Path("b")))]
    assert set(json.loads(capsys.readouterr().out)) == {"blas", "ratios", "targets"}


def test_each_ratio_has_its_meaning_its_target_and_a_verdict() -> None:
    ratios = {
        "speed": Ratio("speed of ours", 0.9),
        "slow": Ratio("speed of theirs", 0.8),
        "share": Ratio("share of all", 0.15, at_most=True),
    }
    measured = {"speed": 0.91, "slow": 0.5, "share": None}
    figures = judged(lambda _: {"engine_s": 2.0, "ratios": measured}, ratios, Workload(1.0))
    assert figures["ratios"] == measured
    assert figures["targets"]["speed"] == {
        "meaning": "speed of ours",
        "good": ">= 0.9",
        "met": True,
    }
    shown = explained(figures)
    assert shown["engine_s"] == 2.0
    assert "targets" not in shown
    assert shown["ratios"]["speed"] == "0.91     (target >= 0.9, met) speed of ours"
    assert shown["ratios"]["slow"] == "0.5      (target >= 0.8, missed) speed of theirs"
    assert shown["ratios"]["share"] == "-        (target <= 0.15, not measured) share of all"


@pytest.mark.parametrize("name", BENCHES)
def test_no_ratio_is_explained_that_is_not_measured(name: str) -> None:
    bench = import_module(f"bench.{name}")
    source = inspect.getsource(bench)
    stems = {ratio.removesuffix("_memory").removesuffix("_fastest") for ratio in bench.RATIOS}
    assert {stem for stem in stems if source.count(stem) < 2} == set()


@pytest.mark.nightly
def test_every_bench_is_a_script() -> None:
    shown = finished((sys.executable, "-c", EACH_HELP, FOLDER, *BENCHES))
    assert shown.count("--seconds") == len(BENCHES)


@pytest.mark.nightly
def test_the_bench_of_arenas_measures_every_ratio() -> None:
    arenas = import_module("bench.arenas")
    figures = judged(arenas.bench_arenas, arenas.RATIOS, Workload(2.0, quick=True))
    assert set(figures["ratios"]) == set(arenas.RATIOS)
    assert all(value > 0.0 for value in figures["ratios"].values())
    assert set(figures["turn_us"]) == {"game", "game_all_positions_different", "coroutine"}
    evaluation = figures["exact_evaluation"]
    assert (evaluation["decisions"], evaluation["score_calls"]) == (41, 1)


@pytest.mark.nightly
def test_all_decisions_of_tictactoe_are_scored_in_one_call() -> None:
    found = exact_evaluation("tictactoe")
    assert (found["decisions"], found["score_calls"]) == (4520, 1)
    assert 0.0 < found["scoring_s"] <= found["all_s"] - found["enumeration_s"]


@pytest.mark.nightly
def test_the_loop_bench_measures_both_halves_and_the_line() -> None:
    loop = import_module("bench.loop")
    figures = judged(loop.bench_loop, loop.RATIOS, Workload(6.0, quick=True))
    ratios = figures["ratios"]
    assert set(ratios) == set(loop.RATIOS)
    assert all(ratio > 0.0 for ratio in ratios.values())
    assert ratios["line_vs_slower_half"] > 1.0  # what computing equal rows once is for
    assert 0.0 <= figures["outside_device_share"] <= 1.0
    assert figures["distinct_rows_per_step"] == 21
    assert figures["moves_per_s"] == pytest.approx(
        figures["moves_per_step"] / figures["seconds_per_step"], rel=0.05
    )


@pytest.mark.nightly
def test_the_bench_of_overlap_compares_equal_samples_and_shows_where_the_time_went(
    tmp_path: Path,
) -> None:
    overlap = import_module("bench.async")
    figures = judged(overlap.bench_async, overlap.RATIOS, Workload(6.0, quick=True))
    assert set(figures["ratios"]) == set(overlap.RATIOS)
    for runs in figures["runs"].values():
        assert [*runs["sync"]["staleness"]] == [0]
        assert max(runs["async"]["staleness"]) > 0
        assert len(runs["async"]["reward_by_step"]) == len(runs["sync"]["reward_by_step"])
        for run in runs.values():
            assert 0.0 < run["trainer_busy_share"] < 1.0
            assert all(start <= end for start, end in run["timeline"]["plays"])
            shares = [share for _, _, share in run["timeline"]["engine"]]
            assert 0.0 < max(shares) <= 1.0
    tool = figures["runs"]["tool"]
    assert tool["sync"]["wall_s"] > tool["sync"]["samples"] / 256 * 0.5
    (tmp_path / "async.json").write_text(json.dumps(figures))
    picture = tmp_path / "async.svg"
    finished((sys.executable, FOLDER / "plot_async.py", tmp_path / "async.json", picture))
    assert all(kind in picture.read_text() for kind in figures["runs"])
