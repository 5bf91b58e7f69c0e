"""Limits of memory on Macs of several sizes, and the choice of the device."""

from collections.abc import Callable, Mapping
from pathlib import Path
from re import escape
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from legos.errors import ModelError
from legos.installed import adding
from legos.mlx import device
from legos.mlx.checks.bare import bare_generation
from legos.mlx.device import MlxDevice
from legos.mlx.model.load import load_tree
from legos.mlx.model.machine import (
    CPU_ROWS,
    bound_memory,
    cache_sizes,
    most_rows,
    num_bytes,
    usable_bytes,
)
from legos.records.limits import EngineLimits
from legos.records.step import BackendConfig
from legos.wiring.model import apply_lora

GIB = 1 << 30


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], dict[str, list[int]]]:
    """Pretends to be a Mac with so many GiB; returns the limits that are set afterwards."""

    def pretend(memory_gib: int) -> dict[str, list[int]]:
        share = 2 / 3 if memory_gib <= 36 else 3 / 4  # of which Metal makes the working set
        facts = {
            "memory_size": memory_gib * GIB,
            "max_recommended_working_set_size": int(share * memory_gib * GIB),
        }
        calls: dict[str, list[int]] = {}
        for name in ("memory", "cache", "wired"):
            found = calls.setdefault(name, [])
            monkeypatch.setattr(mx, f"set_{name}_limit", found.append)
        monkeypatch.setattr(mx, "device_info", lambda: facts)
        monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
        monkeypatch.setattr(mx.metal, "is_available", lambda: True)
        return calls

    return pretend


@pytest.mark.parametrize(
    ("memory_gib", "usable_gib", "kept_gib"),
    [(8, 4.0, 0.4), (16, 9.6, 0.96), (64, 43.2, 2.0), (128, 86.4, 2.0)],
)
def test_memory_is_bounded_by_the_size_of_a_mac(
    mac: Callable[[int], dict[str, list[int]]],
    memory_gib: int,
    usable_gib: float,
    kept_gib: float,
) -> None:
    calls = mac(memory_gib)
    MlxDevice()
    assert usable_bytes() / GIB == pytest.approx(usable_gib)
    assert [limit / GIB for limit in calls["memory"]] == pytest.approx([usable_gib])
    assert [limit / GIB for limit in calls["cache"]] == pytest.approx([kept_gib])
    assert calls["wired"] == []
    bound_memory(11 * GIB)
    assert calls["memory"][1:] == [11 * GIB]
    assert calls["cache"][1] / GIB == pytest.approx(1.1)


def test_the_memory_that_engine_and_trainer_may_use_is_what_mlx_may(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int | None] = []
    model = MlxDevice().load(str(tiny_models["llama"]), inline=True)
    monkeypatch.setattr(device, "bound_memory", limits.append)
    apply_lora(model, rank=2)
    model.make_engine(EngineLimits(memory_bytes=3 * GIB)).close()
    model.make_backend(BackendConfig(memory_limit_bytes=4 * GIB))
    model.close()
    assert limits == [3 * GIB, 4 * GIB]


def test_memory_is_bounded_on_other_gpus_too(
    mac: Callable[[int], dict[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = mac(8)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx, "device_info", lambda: {"total_memory": 80 * GIB})
    MlxDevice()
    assert [limit / GIB for limit in calls["memory"]] == pytest.approx([64.0])
    assert [limit / GIB for limit in calls["cache"]] == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("memory_gib", "cache_gib", "prefix_gib"), [(8, 1.0, 0.25), (16, 2.4, 0.6), (64, 10.8, 2.7)]
)
def test_the_engines_caches_follow_from_what_the_weights_leave(
    mac: Callable[[int], Any],
    tiny_models: dict[str, Path],
    memory_gib: int,
    cache_gib: float,
    prefix_gib: float,
) -> None:
    tree = load_tree(tiny_models["llama"])

    def free() -> int:
        return usable_bytes() - num_bytes(tree.parameters())

    mac(memory_gib)
    sizes = [size / GIB for size in cache_sizes(EngineLimits(), free())]
    assert sizes == pytest.approx([cache_gib, prefix_gib], rel=1e-3)
    assert cache_sizes(EngineLimits(cache_bytes=7, prefix_bytes=0), free()) == (7, 0)
    mac(1)
    assert cache_sizes(EngineLimits(), free())[0] == 1 << 28


def test_the_wired_limit_stays_in_benches(
    mac: Callable[[int], dict[str, list[int]]], tiny_models: dict[str, Path]
) -> None:
    tree = load_tree(tiny_models["llama"])
    stream = mx.default_stream(mx.cpu)
    calls = mac(64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "default_stream", lambda _: stream)
        bare_generation(tree, [(1, 2)], max_tokens=2, rows=1)
    assert calls["wired"] == []


def test_a_processor_decodes_fewer_rows_of_models_whose_memory_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    assert most_rows(256, GIB // 2, 16 * GIB) == CPU_ROWS < 256
    assert most_rows(8, GIB // 2, 16 * GIB) == 8
    assert most_rows(256, GIB // 8, 16 * GIB) == 256
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert most_rows(256, GIB // 2, 16 * GIB) == 256


def test_a_device_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGOS_DEVICE", "cpu")
    MlxDevice()
    assert mx.default_device().type == mx.DeviceType.cpu
    monkeypatch.setenv("LEGOS_DEVICE", "tpu")
    with pytest.raises(ModelError, match="LEGOS_DEVICE is 'tpu'; expected cpu or gpu"):
        MlxDevice()


@pytest.mark.skipif(mx.metal.is_available() or mx.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGOS_DEVICE", "gpu")
    with pytest.raises(ModelError, match=escape(adding("mlx-cuda"))):
        MlxDevice()
