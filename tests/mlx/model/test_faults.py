"""Errors of a device are recognised, and are never taken for what a model cannot do."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from legos.errors import DeviceError
from legos.mlx.generate import serving_check
from legos.mlx.generate.capabilities import probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model import forecast, forward, load
from legos.mlx.model.faults import clear_device, explained, is_fault
from legos.mlx.model.forecast import Sizes
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train import gradient_check

ILLEGAL = "an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("[METAL] Command buffer execution failed: Insufficient Memory (OutOfMemory)", "lower"),
        ("[malloc] Unable to allocate 12 bytes.", "lower training.memory_limit_gib"),
        ("cudaMallocAsync(&data, size, stream) failed: out of memory", "lower"),
        (f"cudaMemcpy(data, buf.data, buf.size, kind) failed: {ILLEGAL}", "end them"),
        (f"cudaGraphInstantiate(&handle_, graph, nullptr, nullptr, 0) failed: {ILLEGAL}", "end"),
        (f"cudaStreamSynchronize(free_streams_[i]) failed: {ILLEGAL}", "end them"),
        ("cublasLtMatmul(handle, desc) failed: the launch failed", "restart the machine"),
    ],
)
def test_what_a_gpu_reports_is_a_fault(message: str, advice: str) -> None:
    error = RuntimeError(message)
    assert is_fault(error)
    assert advice in explained(error)


@pytest.mark.parametrize("reason", ["OutOfMemory", "Timeout"])
def test_advice_names_the_settings_of_a_run_and_of_a_server(reason: str) -> None:
    found = explained(RuntimeError(f"[METAL] Command buffer execution failed: ({reason})"))
    assert "training.memory_limit_gib" in found
    assert "legos serve: --memory-limit-gib" in found


@pytest.mark.parametrize(
    "error",
    [RuntimeError("[addmm] The shapes (2, 3) and (4, 5) do not fit"), ValueError("out of memory")],
)
def test_what_a_program_does_wrong_is_none(error: Exception) -> None:
    assert not is_fault(error)


def test_the_device_is_cleared_even_where_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError(f"cudaStreamSynchronize(free_streams_[i]) failed: {ILLEGAL}")

    monkeypatch.setattr(mx, "clear_cache", fail)
    clear_device()


def checked(folder: Path) -> None:
    """Every check that a run makes of a model."""
    Sizes.of(load_tree(folder))
    served, tree = load_tree(folder), load_tree(folder)
    probe(forward.CausalModel(served), AdapterSlots(served))
    add_lora(tree, lora_shape(tree, rank=2, alpha=2.0, num_layers=2, head=False), seed=0)
    gradient_check.check_gradients(tree, forward.CausalModel(tree), checkpointing=True)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (load, "load_mlx_model"),
        (forward, "in_float32"),
        (mx, "allclose"),
        (serving_check, "_check"),
        (forecast, "cache_leaves"),
        (gradient_check, "_results"),
    ],
)
def test_a_check_that_the_device_fails_says_so(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Another architecture would not help, and neither would slower ways to compute."""

    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError(f"cudaGetLastError() failed: {ILLEGAL}")

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(DeviceError, match=r"the device failed .*cannot use the GPU any more"):
        checked(tiny_models["llama"])
