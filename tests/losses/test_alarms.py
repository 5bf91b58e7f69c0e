"""Levels of the alarms, and means made of sums."""

import math

import numpy as np
import pytest

from legos.losses.alarms import PAGE, alarms
from legos.losses.metrics import SUMS, step_metrics, token_sums

HEALTHY = {
    "mismatch_k3": 5e-4,
    "logprob_gap": 0.011,
    "error_factor": 1.011,
    "effective_sample_share": 0.99,
    "clip_fraction": 0.15,
    "applied": 1,
    "mask_fraction": 0.01,
    "truncation_share": 0.05,
    "arena/illegal": 0.01,
    "zero_advantage_share": 0.4,
}


def test_a_healthy_step_is_silent() -> None:
    assert alarms(HEALTHY) == []
    assert alarms({}) == []


@pytest.mark.parametrize(
    ("metric", "value", "level"),
    [
        ("mismatch_k3", 1e-3, "warning"),
        ("mismatch_k3", 0.1, "error"),
        ("logprob_gap", 0.036, "warning"),
        ("error_factor", 1.02, "warning"),
        ("error_factor", math.inf, "error"),
        ("effective_sample_share", 0.9, "warning"),
        ("effective_sample_share", 0.4, "error"),
        ("clip_fraction", 0.4, "warning"),
        ("clip_fraction", 0.9, "error"),
        ("mask_fraction", 0.3, "warning"),
        ("truncation_share", 0.9, "error"),
        ("arena/illegal", 0.999, "warning"),
        ("zero_advantage_share", 1.0, "warning"),
        ("zero_advantage_share", math.nan, "error"),
        ("logprob_gap", math.nan, "error"),
        ("applied", 0, "warning"),
    ],
)
def test_each_level(metric: str, value: float, level: str) -> None:
    (alarm,) = alarms(HEALTHY | {metric: value})
    assert (alarm.metric, alarm.level) == (metric, level)
    assert alarm.text.startswith(f"{metric} is ")
    assert PAGE in alarm.text


def test_each_policy_has_alarms_of_its_own() -> None:
    metrics = HEALTHY | {"solver/clip_fraction": 0.9, "solver/applied": 1}
    assert alarms(metrics) == []
    [alarm] = alarms(metrics, ["", "solver/"])
    assert (alarm.metric, alarm.level) == ("solver/clip_fraction", "error")
    assert alarm.text.startswith("solver/clip_fraction is 0.9")


def test_a_solved_game_is_silent_and_a_hopeless_start_is_not() -> None:
    assert [a.metric for a in alarms({"step": 3, "zero_advantage_share": 0.95})] == [
        "zero_advantage_share"
    ]
    assert alarms({"step": 60, "zero_advantage_share": 0.95}) == []


def test_a_gap_to_older_weights_is_what_was_learned_until_it_is_huge() -> None:
    aged = HEALTHY | {"mismatch_k3": 5e-3, "logprob_gap": 0.05, "error_factor": 1.1}
    assert len(alarms(aged)) == len(alarms(aged | {"staleness_mean": 0.0})) == 3
    assert alarms(aged | {"staleness_mean": 1.0}) == []
    (alarm,) = alarms(aged | {"staleness_mean": 1.0, "mismatch_k3": 0.2})
    assert (alarm.metric, alarm.level) == ("mismatch_k3", "error")


def test_errors_come_first() -> None:
    found = alarms(HEALTHY | {"mismatch_k3": 2e-3, "truncation_share": 0.9})
    assert [alarm.level for alarm in found] == ["error", "warning"]


def test_means_by_hand() -> None:
    sums = dict.fromkeys(SUMS, 0.0)
    # Ratios 0.5, 1, 1.5, 1: mean 1, mean square 1.125.
    sums |= {"tokens": 4.0, "ratio": 4.0, "ratio_spread": 0.5, "clipped": 2.0, "k3": 0.4}
    sums |= {"masked": 1.0}
    metrics = step_metrics(1.5, list(sums.values()), 2.5)
    expected = {
        "loss": 1.5,
        "grad_norm": 2.5,
        "clip_fraction": 0.5,
        "mask_fraction": 0.25,
        "ratio_mean": 1.0,
        "ratio_std": math.sqrt(0.125),
        "effective_sample_share": 16 / 18,
        "mismatch_k3": 0.1,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_the_deviation_is_around_the_mean() -> None:
    # Ratios 2, 2, 2, 3: mean 2.25, distances from 1 of 1, 1, 1, 2.
    sums = dict.fromkeys(SUMS, 0.0) | {"tokens": 4.0, "ratio": 9.0, "ratio_spread": 7.0}
    metrics = step_metrics(0.0, list(sums.values()), 0.0)
    assert metrics["ratio_std"] == pytest.approx(math.sqrt(3.0) / 4.0)


def test_the_deviation_of_ratios_near_one_survives_float32() -> None:
    gap = np.array([[1e-4, -1e-4, 3e-5, 2e-4]], np.float32)
    nothing = np.zeros_like(gap)
    sums = token_sums(
        np,
        gap,
        mask=np.ones_like(gap),
        cut=nothing,
        masked=None,
        divergences=(nothing, nothing),
        entropy=nothing,
    )
    assert sums.dtype == np.float32
    metrics = step_metrics(0.0, sums.tolist(), 0.0)
    assert metrics["ratio_std"] == pytest.approx(np.exp(gap.astype(float)).std(), rel=2e-3)


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    metrics = step_metrics(math.nan, [4.0] + [math.nan] * (len(SUMS) - 1), math.nan)
    assert math.isnan(metrics["ratio_std"])
    assert math.isnan(metrics["effective_sample_share"])
