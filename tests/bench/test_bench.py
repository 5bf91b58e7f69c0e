"""The benches end, and hold the figures that they promise."""

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from launched import finished

from legos.apps.bench import BENCHES, bench, explained
from legos.bench.exact import exact_evaluation
from legos.bench.ratios import RATIOS
from legos.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_unknown_bench_is_named() -> None:
    with pytest.raises(ConfigError, match="'loops'; did you mean 'loop'"):
        bench("loops", 1.0)


def test_peers_are_only_for_some_benches() -> None:
    with pytest.raises(ConfigError, match=r"needs one of the benches .*, and came with 'loop'"):
        bench("loop", 1.0, peers=[Path("vllm-mlx")])


def test_each_ratio_has_its_meaning_its_target_and_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = {"engine_vs_bare": 0.91, "adapters4_vs_1": 0.5, "group_prefill_share": None}
    monkeypatch.setattr(
        "legos.bench.engine.bench_engine", lambda _: {"engine_s": 2.0, "ratios": measured}
    )
    figures = bench("engine", 1.0)
    assert figures["ratios"] == measured
    assert figures["targets"]["engine_vs_bare"] == {
        "meaning": RATIOS["engine"]["engine_vs_bare"].meaning,
        "good": ">= 0.9",
        "met": True,
    }
    shown = explained(figures)
    assert shown["engine_s"] == 2.0
    assert "targets" not in shown
    assert shown["ratios"]["engine_vs_bare"].startswith("0.91     (target >= 0.9, met) speed ")
    assert shown["ratios"]["adapters4_vs_1"].startswith("0.5      (target >= 0.8, missed) speed ")
    assert shown["ratios"]["group_prefill_share"].startswith(
        "-        (target <= 0.15, not measured) prompt tokens"
    )


@pytest.mark.parametrize("name", BENCHES)
def test_no_ratio_is_explained_that_is_not_measured(name: str) -> None:
    source = inspect.getsource(import_module(f"legos.bench.{name}"))
    stems = {ratio.removesuffix("_memory").removesuffix("_fastest") for ratio in RATIOS[name]}
    assert {stem for stem in stems if stem not in source} == set()


def test_the_bench_of_arenas_measures_every_ratio() -> None:
    figures = bench("arenas", 2.0, quick=True)
    assert set(figures["ratios"]) == set(RATIOS["arenas"])
    assert all(value > 0.0 for value in figures["ratios"].values())
    assert set(figures["turn_us"]) == {"game", "game_all_positions_different", "coroutine"}
    evaluation = figures["exact_evaluation"]
    assert (evaluation["decisions"], evaluation["score_calls"]) == (41, 1)


@pytest.mark.slow
def test_all_decisions_of_tictactoe_are_scored_in_one_call() -> None:
    found = exact_evaluation("tictactoe")
    assert (found["decisions"], found["score_calls"]) == (4520, 1)
    assert 0.0 < found["scoring_s"] <= found["all_s"] - found["enumeration_s"]


@pytest.mark.slow
def test_the_loop_bench_measures_both_halves_and_the_line() -> None:
    figures = bench("loop", 6.0, quick=True)
    ratios = figures["ratios"]
    assert set(ratios) == {
        "engine_vs_bare",
        "engine_vs_bare_long",
        "engine_vs_bare_repeated",
        "line_vs_slower_half",
        "line_vs_slower_half_shared",
        "slow_play_throughput",
    }
    assert all(ratio > 0.0 for ratio in ratios.values())
    assert ratios["line_vs_slower_half"] > 1.0  # what computing equal rows once is for
    assert 0.0 <= figures["outside_device_share"] <= 1.0
    assert figures["distinct_rows_per_step"] == 21
    assert figures["moves_per_s"] == pytest.approx(
        figures["moves_per_step"] / figures["seconds_per_step"], rel=0.05
    )


@pytest.mark.slow
def test_the_bench_of_overlap_compares_equal_samples_and_shows_where_the_time_went(
    tmp_path: Path,
) -> None:
    figures = bench("async", 6.0, quick=True)
    assert set(figures["ratios"]) == set(RATIOS["async"])
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
    finished((sys.executable, EXAMPLES / "plot_async.py", tmp_path / "async.json", picture))
    assert all(kind in picture.read_text() for kind in figures["runs"])
