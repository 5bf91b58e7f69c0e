"""The memory of training and generation is forecast from the sizes of modules alone."""

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
import pytest
from conftest import StepWorker
from mac_rows import USUAL_MODELS, shapes_of, usable_on
from mlx_backends import tree_backend

from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import small_model
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.forecast import (
    NOT_SPLIT,
    Sizes,
    engine_bytes,
    held_bytes,
    lora_bytes,
    pass_bytes,
    prefill_tokens,
)
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.model.machine import num_bytes
from legos.mlx.train.linear_attention.delta_rule import compute_in_chunks
from legos.records.limits import EngineLimits, TrainingSize
from legos.records.request import Request, Result
from legos.records.step import BackendConfig, Update

MODELS = USUAL_MODELS
SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "vocab_size": 512,
}
MIDDLE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 4096}
WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 32000}

DELTA: dict[str, Any] = SMALL | {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # as in Qwen3.5
MAMBA = SMALL | {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 64, "mamba_d_ssm": 256}
WHOLE = SMALL | {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 8000}
EXPERTS = SMALL | {"moe_intermediate_size": 128}


class Step(NamedTuple):
    rank: int
    layers: int
    rows: int
    length: int
    checkpointing: bool = False


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
    ("gemma2", SMALL, mx.float32, Step(8, 16, 1, 700, checkpointing=True)),
    *(("qwen3_moe", EXPERTS, mx.float32, step) for step in STEPS[:2]),
    *(("internlm2", WHOLE, mx.float32, STEPS[n]) for n in (1, 4, 6)),
]
BY_HAND: list[tuple[str, Mapping[str, Any], Any, Step]] = [
    *(("llama", fields, mx.float32, step) for fields in (MIDDLE, WIDE) for step in STEPS),
    *(("qwen3", SMALL, mx.float32, step) for step in STEPS),
    *(("llama", SMALL, mx.bfloat16, step) for step in STEPS[::2]),
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
    ("gpt_neox", WHOLE, mx.bfloat16, STEPS[1]),
    *(("qwen3_5", DELTA, mx.float32, STEPS[n]) for n in (0, 4, 5, 6)),
    ("qwen3_5", DELTA, mx.float32, Step(8, 16, 1, 2048)),
    *(("falcon_h1", MAMBA, mx.float32, step) for step in (STEPS[1], STEPS[4])),
]
QUICK = [IN_CI[0], IN_CI[12]]
COMBINATIONS = [
    *QUICK,
    *(pytest.param(*each, marks=pytest.mark.nightly) for each in IN_CI if each not in QUICK),
    *(pytest.param(*each, marks=pytest.mark.nightly) for each in BY_HAND),
]


def measured_peak(tree: Any, step: Step, base: int) -> int:
    shape = lora_shape(
        tree,
        rank=step.rank,
        alpha=8.0,
        num_layers=step.layers,
        head=False,
    )
    add_lora(tree, shape, seed=0)
    config = BackendConfig(
        micro_batch_tokens=step.rows * step.length, gradient_checkpointing=step.checkpointing
    )
    backend = tree_backend(tree, shape, config)
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


def peak_bytes(sizes: Sizes, size: TrainingSize, rows: int, length: int) -> int:
    """Planned peak of a step: that of its pass, or of the update, which makes four copies anew."""
    largest = max(pass_bytes(sizes, size, rows, length, 0), 4 * lora_bytes(sizes, size))
    return sizes.weights + held_bytes(sizes, size) + largest


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "fields", "dtype", "step"), COMBINATIONS)
def test_a_forecast_of_training_is_close_to_the_measured_peak(
    architecture: str, fields: Any, dtype: Any, step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    size = TrainingSize(
        rank=step.rank,
        layers=step.layers,
        checkpointing=step.checkpointing,
        others=1,
    )
    tree = small_model(architecture, dtype=dtype, **fields)
    planned = peak_bytes(Sizes.of(tree), size, step.rows, step.length)
    gc.collect()
    mx.clear_cache()
    base = mx.get_active_memory() - num_bytes(tree.parameters())
    peak = measured_peak(tree, step, base)
    with capsys.disabled():
        sys.stdout.write(f"\n{planned / peak:.2f} = {planned >> 20} / {peak >> 20} MiB: {step}")
    assert 0.9 <= planned / peak <= 1.35


NARROW: dict[str, Any] = SMALL | {"intermediate_size": 256}
MIB = 1 << 20


class Load(NamedTuple):
    """Requests that fill an engine: they come in waves, each while the last one is decoded."""

    cache_mib: float
    prefill_tokens: int
    waves: Sequence[tuple[int, int]]  # requests, and tokens of their prompts
    prefix_mib: float = 0.0
    shared: int = 0  # first tokens that all prompts have in common
    decode_ahead: Any = "off"


PREFILL = Load(1.7, 2048, [(4, 512)])
BOTH = Load(6.1, 512, [(14, 505), (1, 505)])
PREFIXES = Load(3.0, 512, [(2, 510), (2, 500), (2, 490), (2, 480)], prefix_mib=1.0)
ENDS_AT_ONCE = Load(4.8, 128, [(1, 500), (12, 505)], prefix_mib=1.0, shared=490)
AHEAD = Load(6.1, 512, [(14, 505), (1, 505)], decode_ahead="on")
DECODING = Load(15.5, 512, [(32, 250)])


@pytest.mark.parametrize(
    ("architecture", "fields", "load"),
    [
        pytest.param("llama", NARROW, BOTH, marks=pytest.mark.nightly),
        pytest.param("gemma3_text", NARROW, PREFILL, marks=pytest.mark.nightly),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in (
                ("llama", NARROW, PREFILL),
                ("llama", NARROW | {"num_hidden_layers": 12}, DECODING),
                ("qwen3", NARROW | {"vocab_size": 4096}, AHEAD),
                ("qwen3_moe", NARROW | {"moe_intermediate_size": 128}, BOTH),
                ("llama", NARROW, PREFIXES),
                ("llama", NARROW, ENDS_AT_ONCE),
            )
        ),
    ],
)
def test_a_forecast_of_an_engine_is_close_to_the_measured_peak(
    architecture: str, fields: dict[str, Any], load: Load
) -> None:
    limits = EngineLimits(
        cache_bytes=int(load.cache_mib * MIB),
        prefix_bytes=int(load.prefix_mib * MIB),
        prefill_tokens=load.prefill_tokens,
        decode_ahead=load.decode_ahead,
    )
    tree = small_model(architecture, **fields)
    planned = engine_bytes(Sizes.of(tree), limits, 1 << 40)
    measured = engine_peak(tree, fields["vocab_size"], limits, load)
    assert 0.9 <= planned / measured <= 1.35


def engine_peak(tree: Any, num_vocabulary: int, limits: EngineLimits, load: Load) -> int:
    """Peak bytes of an engine under a load, without the weights."""
    engine = MlxEngine(
        cast("Any", worker := StepWorker()),
        tree,
        num_vocabulary=num_vocabulary,
        context=4096,
        limits=limits,
    )
    gc.collect()
    mx.clear_cache()
    base = mx.get_active_memory()
    mx.reset_peak_memory()
    results: dict[int, Result] = {}
    rng = np.random.default_rng(0)
    for number, (count, length) in enumerate(load.waves):
        requests = [
            (
                1000 * number + index,
                Request(
                    prompt_ids=(5,) * load.shared
                    + tuple(rng.integers(1, 60, length - load.shared).tolist()),
                    max_tokens=60,
                    seed=index,
                    adapter="base",
                ),
            )
            for index in range(count)
        ]
        engine.submit(requests, results.update)
        while engine.stats()["rows_decoding"] < count and worker.tick():
            pass
        for _ in range(8):
            worker.tick()
    while worker.tick():
        pass
    assert not any(isinstance(result, Exception) for result in results.values())
    return mx.get_peak_memory() - base


def test_a_forecast_allocates_and_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Llama 3.2 1B"]))
    tree = shapes_of(tmp_path)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    sizes = Sizes.of(tree)
    assert peak_bytes(sizes, TrainingSize(), 64, 4096) > 10 << 30
    assert engine_bytes(sizes, EngineLimits(cache_bytes=1 << 36), 0) > 1 << 36
    assert mx.get_peak_memory() - before < 1 << 20


def test_prefixes_and_further_policies_are_counted() -> None:
    sizes = Sizes.of(small_model("llama", **SMALL))
    one, two = (TrainingSize(rank=64, policies=policies) for policies in (1, 2))
    assert held_bytes(sizes, two) - held_bytes(sizes, one) == 4 * lora_bytes(sizes, one)
    none, both = (pass_bytes(sizes, TrainingSize(others=others), 1, 1000, 0) for others in (0, 2))
    carried = 1000 * (sizes.token_bytes + sizes.hidden * sizes.item)  # of a row, for one policy
    assert both - none == pytest.approx(carried, rel=0.01)


def test_states_of_a_loop_over_tokens_are_counted_for_each() -> None:
    sizes = Sizes.of(small_model("mamba", **SMALL))
    assert sizes.state_bytes > 0
    assert pass_bytes(sizes, TrainingSize(), 1, 512, 0) > 512 * sizes.state_bytes


@pytest.mark.parametrize("architecture", ["falcon_h1", "mamba2", "nemotron_h"])
def test_layers_of_mamba_2_hold_gates_between_tokens_of_a_segment(architecture: str) -> None:
    sizes = Sizes.of(small_model(architecture))
    assert (sizes.segment, sizes.pair_heads) == (256, 4)
    none, size = replace(sizes, pair_heads=0), TrainingSize(layers=2)
    added = pass_bytes(sizes, size, 1, 1000, 0) - pass_bytes(none, size, 1, 1000, 0)
    assert added == pytest.approx((7 + 2 * 2) * 1000 * 256 * 4 * 4, abs=1)


@pytest.mark.parametrize(("architecture", "segment"), [("qwen3_5", 256), ("kimi_linear", 64)])
def test_states_of_layers_in_chunks_are_counted_once_a_segment(
    architecture: str, segment: int
) -> None:
    """Also of a tree that computes in chunks already, as a trainer's does."""
    tree = small_model(architecture)
    sizes = Sizes.of(tree)
    compute_in_chunks(tree)
    assert Sizes.of(tree) == sizes
    assert sizes.segment == segment
    more = replace(sizes, state_bytes=sizes.state_bytes + 1000)
    size = TrainingSize(layers=4)
    added = pass_bytes(more, size, 1, 512, 0) - pass_bytes(sizes, size, 1, 512, 0)
    assert added == pytest.approx(1000 * 512 / segment, abs=1)


def test_a_segment_is_computed_at_a_time() -> None:
    sizes = Sizes.of(small_model("qwen3_5", **DELTA))
    assert sizes.segment_width == 10 * 4 * (128 + 128) + 5 * 4 * 64
    none = replace(sizes, segment_width=0)
    added = [
        pass_bytes(sizes, TrainingSize(), 1, length, 0)
        - pass_bytes(none, TrainingSize(), 1, length, 0)
        for length in (100, 256, 1000)
    ]
    assert added == pytest.approx([4 * n * sizes.segment_width for n in (100, 256, 256)], abs=1)


@pytest.mark.parametrize(
    ("name", "bits", "tokens"),
    [
        ("Qwen3 1.7B", 16, (512, 2048, 4096, 4096)),
        ("Qwen3 4B", 4, (512, 2048, 4096, 4096)),
        ("Qwen3 14B", 4, (512, 512, 4096, 4096)),
    ],
)
def test_prefills_are_as_large_as_an_eighth_of_what_the_weights_leave_on_a_mac(
    tmp_path: Path, name: str, bits: int, tokens: Sequence[int]
) -> None:
    config = MODELS[name]
    if bits == 4:
        config = config | {"quantization": {"group_size": 64, "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = Sizes.of(shapes_of(tmp_path))
    limits = EngineLimits()
    free = [usable_on(gb) - sizes.weights for gb in (8, 16, 64, 128)]
    assert [prefill_tokens(sizes, limits, each) for each in free] == list(tokens)
    assert prefill_tokens(sizes, limits, -1) == 512  # as while rows are decoded
    set_by_hand = EngineLimits(prefill_tokens=tokens[0])
    assert engine_bytes(sizes, limits, free[0]) == engine_bytes(sizes, set_by_hand, free[0])


@pytest.mark.parametrize("name", [*NOT_SPLIT, "llama", "internlm2"])
def test_it_is_known_before_loading_where_trunk_and_head_are_not_split(name: str) -> None:
    model = small_model(name)
    assert Sizes.of(model).whole == (CausalModel(model).trunk is model)


@pytest.mark.parametrize(
    "name", ["openelm", "talkie", "afm7", "kimi_vl", "kimi_k25", "llama4", "minimax_m3_vl"]
)
def test_sizes_are_found_where_names_and_configurations_are_others(name: str) -> None:
    """Embeddings of another name, and the text model's configuration as an object."""
    model = small_model(name)
    sizes = Sizes.of(model)
    assert sizes.vocabulary == num_token_ids(model) == model(mx.array([[1, 2]])).shape[-1]
    assert sizes.layers == 4
    step = pass_bytes(sizes, TrainingSize(layers=4), rows=1, length=24, ceiling_bytes=0)
    assert step < 64 << 20
