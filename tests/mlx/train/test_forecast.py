"""The memory of training is forecast from shapes alone, never below what is measured."""

import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from legos.errors import ModelError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mac import MACS_GB
from legos.mlx import fits
from legos.mlx.checks.small_models import small_model
from legos.mlx.fits import usable_on
from legos.mlx.model import machine
from legos.mlx.model.load import shapes_of
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.machine import num_bytes
from legos.mlx.model.trace import peak_of
from legos.mlx.model.worker import InlineWorker
from legos.mlx.train.backend import mlx_backend
from legos.mlx.train.forecast import Forecast
from legos.records.limits import TrainingSize
from legos.records.step import BackendConfig, Update

SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "vocab_size": 512,
}
MIDDLE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 4096}
WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 32000}

EXPERTS = SMALL | {"moe_intermediate_size": 128}


class Step(NamedTuple):
    rank: int
    layers: int
    rows: int
    length: int
    checkpointing: bool = False
    use_dora: bool = False


STEPS = (
    Step(8, 16, 8, 64),
    Step(8, 16, 2, 512),
    Step(32, 2, 4, 256),
    Step(64, 16, 16, 100),
    Step(8, 16, 1, 1000),
    Step(8, 16, 4, 256, checkpointing=True),
    Step(8, 16, 1, 1000, checkpointing=True),
)
IN_CI: list[tuple[str, Mapping[str, Any], Any, Step]] = [
    *(("llama", SMALL, mx.float32, step) for step in STEPS),
    *(("gemma3_text", SMALL, mx.float32, step) for step in STEPS),
    ("gemma2", SMALL, mx.float32, Step(8, 16, 1, 700)),  # no kernel computes its attention
    ("llama", SMALL, mx.float32, Step(8, 16, 2, 512, use_dora=True)),
    ("gemma2", SMALL, mx.float32, Step(8, 16, 1, 700, checkpointing=True)),
    ("llama", SMALL, mx.float32, Step(16, 16, 4, 700, checkpointing=True, use_dora=True)),
    *(("qwen3_moe", EXPERTS, mx.float32, step) for step in STEPS[:2]),
]
BY_HAND: list[tuple[str, Mapping[str, Any], Any, Step]] = [
    *(("llama", fields, mx.float32, step) for fields in (MIDDLE, WIDE) for step in STEPS),
    *(("qwen3", SMALL, mx.float32, step) for step in STEPS),
    *(("llama", SMALL, mx.bfloat16, step) for step in STEPS[::2]),
    ("llama", MIDDLE, mx.float32, Step(8, 16, 4, 256, checkpointing=True, use_dora=True)),
    *(("qwen3_moe", EXPERTS, mx.float32, step) for step in STEPS[3:6]),
    ("qwen3_moe", EXPERTS, mx.float32, Step(8, 16, 2, 600, checkpointing=True)),
    ("qwen3_moe", EXPERTS | {"moe_intermediate_size": 16}, mx.float32, Step(8, 16, 4, 256)),
    ("llama", SMALL, mx.float32, Step(4, 16, 1, 2048)),
    ("llama", SMALL, mx.float32, Step(4, 16, 2, 2048, checkpointing=True)),
    ("llama", SMALL, mx.float32, Step(64, 2, 2, 600, checkpointing=True)),
    ("llama", SMALL, mx.float32, Step(64, 16, 8, 64, checkpointing=True)),
    ("llama", MIDDLE, mx.float32, Step(16, 16, 1, 2000, checkpointing=True)),
    ("gemma3_text", MIDDLE, mx.float32, Step(16, 16, 1, 2000)),
    ("gemma3_text", MIDDLE, mx.float32, Step(16, 16, 1, 2000, checkpointing=True)),
    ("qwen3", WIDE, mx.bfloat16, Step(8, 16, 2, 1000, checkpointing=True)),
    ("qwen3", WIDE, mx.bfloat16, Step(8, 16, 8, 128)),
]
COMBINATIONS = [
    *(pytest.param(*each, marks=pytest.mark.slow) for each in IN_CI),
    *(pytest.param(*each, marks=pytest.mark.memory) for each in BY_HAND),
]


def measured_peak(tree: Any, step: Step, base: int) -> int:
    shape = lora_shape(
        tree,
        rank=step.rank,
        alpha=8.0,
        num_layers=step.layers,
        head=False,
        use_dora=step.use_dora,
    )
    add_lora(tree, shape, seed=0)
    config = BackendConfig(
        micro_batch_tokens=step.rows * step.length, gradient_checkpointing=step.checkpointing
    )
    backend = mlx_backend(InlineWorker(), tree, shape, config)
    rng = np.random.default_rng(0)
    samples = [
        make_sample(
            rng.integers(1, 60, step.length + 1).tolist(),
            positions=tuple(range(2, step.length + 1)),
        )
        for _ in range(step.rows)
    ]
    peaks: list[int] = []
    for _ in range(3):
        mx.clear_cache()
        mx.reset_peak_memory()
        weights = [1e-3] * step.rows
        backend.forward_backward(samples, weights, Objective(kl_coef=0.1)).result()
        peaks.append(mx.get_peak_memory() - base)
        mx.reset_peak_memory()
        backend.optim_step(Update(learning_rate=1e-4, ema_decay=0.9)).result()
        peaks.append(mx.get_peak_memory() - base)
    return max(peaks[2:])  # the first step also probes


@pytest.mark.parametrize(("architecture", "fields", "dtype", "step"), COMBINATIONS)
def test_a_forecast_is_little_above_the_measured_peak(
    architecture: str, fields: Any, dtype: Any, step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    size = TrainingSize(
        rank=step.rank,
        layers=step.layers,
        checkpointing=step.checkpointing,
        use_dora=step.use_dora,
        others=1,
    )
    forecast = Forecast(small_model(architecture, dtype=dtype, **fields), size)
    planned = forecast.peak_bytes(step.rows, step.length)
    del forecast
    gc.collect()
    mx.clear_cache()
    tree = small_model(architecture, dtype=dtype, **fields)
    base = mx.get_active_memory() - num_bytes(tree.parameters())
    peak = measured_peak(tree, step, base)
    with capsys.disabled():
        sys.stdout.write(f"\n{planned / peak:.2f} = {planned >> 20} / {peak >> 20} MiB: {step}")
    assert 1.0 <= planned / peak <= 1.25


def test_a_forecast_allocates_nothing() -> None:
    tree = small_model("llama", **SMALL)
    forecast = Forecast(tree, TrainingSize())
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    assert forecast.peak_bytes(64, 4096) > 10 << 30
    assert mx.get_peak_memory() - before < 1 << 20


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("architecture", "layers"), [("llama", 1), ("llama", 5), ("qwen3_moe", 2), ("gemma3_text", 5)]
)
def test_layers_left_out_of_a_trace_change_no_peak(
    architecture: str, layers: int, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = TrainingSize(layers=layers, checkpointing=checkpointing, others=1)
    fields: dict[str, Any] = {**EXPERTS, "num_hidden_layers": 17}

    def planned() -> int:
        return Forecast(small_model(architecture, **fields), size).peak_bytes(2, 300)

    few = planned()
    monkeypatch.setattr("legos.mlx.train.forecast.num_repeated", lambda *_: 0)
    assert few == pytest.approx(planned(), rel=0.001)


def test_the_peak_of_a_graph_counts_views_donations_and_copies() -> None:
    x = mx.zeros((1024, 256))
    size = x.nbytes

    def peak(function: Any) -> int:
        return peak_of(lambda x: [function(x)], x, behind=0)

    assert peak(lambda x: x + 1) == pytest.approx(size, rel=0.01)
    assert peak(lambda x: mx.exp(x + 1)) == pytest.approx(size, rel=0.01)  # in the same buffer
    assert peak(lambda x: x.T) == 0
    assert peak(lambda x: x.reshape(512, 512)) == 0
    assert peak(lambda x: x.T.reshape(-1)) == size
    assert peak(lambda x: mx.broadcast_to(x, (8, 1024, 256))) == 0
    assert peak(lambda x: x @ x.T) == 1024 * 1024 * 4
    assert peak(lambda x: (x + 1) @ (x + 2).T) == pytest.approx(2 * size + (4 << 20), rel=0.01)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def folder_of(tmp_path: Path, **fields: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | fields))
    (tmp_path / "weights.txt").touch()
    return tmp_path


def test_a_model_too_large_is_refused_with_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "NEGLIGIBLE", 0.0)
    folder = folder_of(tmp_path)
    line = fits.check_training(folder, TrainingSize(limit_bytes=8 << 30))
    assert line is not None
    assert "for the engine (prefills of up to 4096 tokens); " in line
    assert "4096 tokens at once in rows of 512" in line
    assert "of 8.00 GiB in all; rows of up to " in line
    small = fits.check_training(folder, TrainingSize(limit_bytes=int(1.2 * 2**30)))
    assert small is not None
    assert "4096 tokens at once" not in small
    short = fits.check_training(folder, TrainingSize(limit_bytes=int(0.5 * 2**30)))
    assert short is not None
    assert "256 tokens at once in rows of 128" in short
    assert short.endswith("rows of up to 128 tokens fit, and longer ones are left out")
    with pytest.raises(ModelError, match=r"a row of 64 tokens needs .* 0\.30 GiB can be used"):
        fits.check_training(folder, TrainingSize(limit_bytes=int(0.3 * 2**30)))
    with pytest.raises(ModelError, match="take a smaller model"):
        fits.check_training(folder, TrainingSize(limit_bytes=1 << 20))


def test_a_copy_in_four_bits_is_named_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "NEGLIGIBLE", 0.0)
    folder = folder_of(tmp_path, hidden_size=4096, intermediate_size=11008)
    with pytest.raises(ModelError, match=r"in 4 bits has about \d\.\d\d GiB of weights and fits"):
        fits.check_training(folder, TrainingSize(limit_bytes=2 * 2**30))


def test_the_largest_usual_model_that_fits_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Mac with 8 GB, of which 4 GiB can be used; docs/run/mac.md has the same row."""
    monkeypatch.setattr(fits, "NEGLIGIBLE", 0.0)
    folder = folder_of(tmp_path, hidden_size=8192, intermediate_size=28672)
    told = r"; Qwen3 4B in 4 bits is the largest of the usual models that fits, in rows of 512"
    with pytest.raises(ModelError, match=told):
        fits.check_training(folder, TrainingSize(limit_bytes=usable_on(8)))


def test_larger_macs_take_longer_rows_and_four_bits_longer_ones() -> None:
    config = {**CONFIG, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 3}
    plain = fits.longest_rows(config, TrainingSize(checkpointing=True))
    quantised = fits.longest_rows(
        config | {"quantization": {"group_size": 64, "bits": 4}}, TrainingSize(checkpointing=True)
    )
    assert plain == sorted(plain)
    assert len(plain) == len(MACS_GB)
    assert all(few <= many for few, many in zip(plain, quantised, strict=True))
    assert plain[-1] == 8192


@pytest.mark.parametrize(("gb", "usable"), [(8, 4.0), (16, 9.6), (64, 43.2), (128, 86.4)])
def test_what_macs_of_each_size_give(gb: int, usable: float) -> None:
    memory = gb << 30
    advised = memory * 2 // 3 if gb <= 36 else memory * 3 // 4
    assert machine.usable_of(advised, memory) == pytest.approx(usable * 2**30, rel=0.01)


def test_a_model_whose_graph_grows_with_its_rows_is_measured_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "NEGLIGIBLE", 0.0)
    fields = {"state_size": 8, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True}
    sizes = {"model_type": "mamba", "time_step_rank": 4, "tie_word_embeddings": True}
    folder = folder_of(tmp_path, **sizes, **fields)
    line = fits.check_training(folder, TrainingSize(limit_bytes=8 << 30))
    assert line is not None
    assert "cannot be planned before the first step" in line
    assert "compute one token of a row after the other" in line
    with pytest.raises(ModelError, match=r"GiB of weights, and 0\.00 GiB can be used"):
        fits.check_training(folder, TrainingSize(limit_bytes=1 << 20))


@pytest.mark.parametrize("use_dora", [False, True])
def test_a_forecast_reads_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_dora: bool
) -> None:
    folder = folder_of(tmp_path, hidden_size=1024, intermediate_size=2816)
    tree = shapes_of(folder)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    Forecast(tree, TrainingSize(use_dora=use_dora)).peak_bytes(1, 64)
    assert mx.get_peak_memory() - before < 1 << 20
