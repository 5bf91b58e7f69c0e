"""What the parts of a vLLM server get from a model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from legos.errors import AdapterError
from legos.wiring.engines import TokenEngine
from legos.wiring.model import apply_lora, load_model
from legos.wiring.vllm import probe_of, started_vllm


def next_token(logits: NDArray[np.float32], watched: tuple[int, ...]) -> NDArray[np.float64]:
    last = logits[-1].astype(np.float64)
    return last[list(watched)] - np.log(np.exp(last).sum())


def test_a_probe_computes_any_adapter_and_leaves_the_model_as_it_is(
    tiny_models: Mapping[str, Path],
) -> None:
    model = load_model(str(tiny_models["llama"]), inline=True)
    apply_lora(model, rank=4, layers=2)
    probe = probe_of(model)
    first, ids = probe.first_adapter(), probe.prompt
    before, found = model(ids), probe.expected(first)
    assert np.abs(found - next_token(before, probe.watched)).mean() > 0.5
    transposed = {name: array.T for name, array in first.arrays.items()}
    with pytest.raises(AdapterError, match="rank"):
        probe.expected(replace(first, arrays=transposed))
    np.testing.assert_array_equal(model(ids), before)
    model.set_adapter(first)
    np.testing.assert_allclose(found, next_token(model(ids), probe.watched), atol=1e-5)


def test_what_a_server_of_ours_leaves_behind_goes_with_its_log(
    tiny_models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one leaves its adapters that dies."""

    def nothing() -> None:
        """Start no process, and end none."""

    process = SimpleNamespace(start=nothing, wait=nothing, close=nothing)
    left: list[Path] = []

    def engine_of(_: object, model: Any, *, adapter_folder: Path, **options: Any) -> TokenEngine:
        left.append(adapter_folder / "adapter")
        left[0].mkdir()
        engine: Any = SimpleNamespace(close=nothing)
        return TokenEngine(engine, model)

    monkeypatch.setattr("legos.wiring.vllm.find_vllm", lambda: Path("vllm"))
    monkeypatch.setattr("legos.wiring.vllm.vllm_process", lambda *_, **options: process)
    monkeypatch.setattr("legos.wiring.vllm.vllm_at", engine_of)
    model = load_model(str(tiny_models["llama"]), inline=True)
    apply_lora(model, rank=4, layers=2)
    started_vllm(model, policies=("policy",), say=print).close()
    assert not left[0].exists()
