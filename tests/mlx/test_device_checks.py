"""Checks of this device on small models: they pass, and each finds a part that is broken."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import device_checks
import mlx.core as mx
import pytest
from device_checks import CHECKS, exceeded, hybrid_decoding, processes
from mlx.utils import tree_map

from legos.mlx.generate import rows
from legos.mlx.train.step_gradients import StepGradients

Patch = pytest.MonkeyPatch


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*CHECKS])
def test_a_sound_device_passes(name: str) -> None:
    assert exceeded(name) == []


@pytest.mark.nightly
def test_memory_does_not_grow_and_processes_end_over_minutes() -> None:
    decoding, ended = hybrid_decoding(float("inf")), processes(10)
    assert decoding["steps"] == 2000
    assert decoding["bytes_per_step"] <= 1.0
    assert ended["failed"] == 0.0


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
    monkeypatch.setattr(device_checks, "_CHILD", "import os; os.abort()")


def silent_allocation(monkeypatch: Patch) -> None:
    gpu = SimpleNamespace(type=mx.DeviceType.gpu)
    monkeypatch.setattr(device_checks.mx, "default_device", lambda: gpu)
    monkeypatch.setattr(device_checks, "TOO_LARGE", (1, 64))


BROKEN: Mapping[str, tuple[Callable[[Patch], None], str]] = {
    "small_steps": (wrong_gradients, "qwen3_5"),
    "long_rows": (wrong_attention_to_long_rows, "largest_gap_nats"),
    "hybrid_decoding": (lazy_caches, "bytes_per_step"),
    "processes": (aborted_exits, "failed"),
    "failed_allocation": (silent_allocation, "not_raised"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*CHECKS])
def test_a_broken_part_is_found(name: str, monkeypatch: Patch) -> None:
    broken, figure = BROKEN[name]
    broken(monkeypatch)
    assert figure in exceeded(name)
