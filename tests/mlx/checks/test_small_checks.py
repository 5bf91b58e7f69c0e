"""The checks of a device on small models: they pass here, and each finds a part that is broken."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from legos.bench.self_test import SMALL, TIMES, Check, SelfTest
from legos.mlx.checks import small_checks
from legos.mlx.checks.small_checks import LONG_CHECKS, SMALL_CHECKS
from legos.mlx.generate import rows
from legos.mlx.train.step_gradients import StepGradients

Patch = pytest.MonkeyPatch


def judged(name: str, *, long: bool = False) -> Check:
    """The check as the self-test judges it."""
    checks = SimpleNamespace(
        small_check=lambda n, long: (LONG_CHECKS if long else SMALL_CHECKS)[n]()
    )
    test: Any = SimpleNamespace(_checks=checks, _long=long)
    return SelfTest.small(test, name, SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL])
def test_a_sound_device_passes(name: str) -> None:
    check = judged(name)
    assert check.status == ("skip" if name == "failed_allocation" else "pass"), check
    assert SMALL[name].keys() <= check.figures.keys() or check.reason


@pytest.mark.slow
def test_long_checks_take_all_steps_and_more_processes() -> None:
    decoding, ended = judged("hybrid_decoding", long=True), judged("processes", long=True)
    assert (decoding.status, decoding.figures["steps"]) == ("pass", 2000)
    assert (ended.status, ended.figures["processes"]) == ("pass", 10)


def wrong_gradients(monkeypatch: Patch) -> None:
    compute = StepGradients.of_step

    def of_step(*args: Any, **options: Any) -> Any:
        found = compute(*args, **options)
        gradients = tree_map(lambda array: 1.01 * array, found.gradients)
        return SimpleNamespace(gradients=gradients)

    monkeypatch.setattr(StepGradients, "of_step", of_step)


def wrong_attention_to_long_rows(monkeypatch: Patch) -> None:
    compute = mx.fast.scaled_dot_product_attention

    def attend(queries: mx.array, keys: mx.array, values: mx.array, **options: Any) -> mx.array:
        if queries.shape[2] == 1 and keys.shape[2] > 1024:  # a decode step
            values = 2 * values
        return compute(queries, keys, values, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attend)


def lazy_caches(monkeypatch: Patch) -> None:
    monkeypatch.setattr(rows, "EVALUATED_EVERY", 1 << 30)


def aborted_exits(monkeypatch: Patch) -> None:
    monkeypatch.setattr(small_checks, "_CHILD", "import os; os.abort()")


def silent_allocation(monkeypatch: Patch) -> None:
    gpu = SimpleNamespace(type=mx.DeviceType.gpu)
    monkeypatch.setattr(small_checks.mx, "default_device", lambda: gpu)
    monkeypatch.setattr(small_checks, "TOO_LARGE", (1, 64))


BROKEN: Mapping[str, tuple[Callable[[Patch], None], str]] = {
    "small_steps": (wrong_gradients, "qwen3_5 is 0.01; at most 0.001"),
    "long_rows": (wrong_attention_to_long_rows, "largest_gap_nats is"),
    "hybrid_decoding": (lazy_caches, "bytes_per_step is"),
    "processes": (aborted_exits, "failed is 3; at most 0"),
    "failed_allocation": (silent_allocation, "not_raised is 1; at most 0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BROKEN])
def test_a_broken_part_is_found(name: str, monkeypatch: Patch) -> None:
    broken, reason = BROKEN[name]
    broken(monkeypatch)
    check = judged(name)
    assert check.status == "fail", check
    assert reason in check.reason


def test_every_check_has_limits_or_is_a_time() -> None:
    assert {*SMALL_CHECKS} == {*SMALL, *TIMES} == {*BROKEN, *TIMES}
