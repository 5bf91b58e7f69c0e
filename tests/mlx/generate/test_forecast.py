"""The memory of an engine is forecast from shapes alone, never below what is measured."""

import gc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
import pytest
from conftest import EngineRoom, StepWorker

from legos.mlx.checks.small_models import small_model
from legos.mlx.fits import USUAL_MODELS, usable_on
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.generate.forecast import EngineForecast
from legos.mlx.model.load import shapes_of
from legos.mlx.model.machine import num_bytes
from legos.records.limits import EngineLimits
from legos.records.request import Request, Result

SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "vocab_size": 512,
}
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
DECODING = Load(27.2, 512, [(32, 250)])


@pytest.mark.parametrize(
    ("architecture", "fields", "load"),
    [
        pytest.param("llama", SMALL, BOTH, marks=pytest.mark.slow),
        pytest.param("gemma3_text", SMALL, PREFILL, marks=pytest.mark.slow),
        *(
            pytest.param(*each, marks=pytest.mark.memory)
            for each in (
                ("llama", SMALL, PREFILL),
                ("llama", SMALL | {"num_hidden_layers": 12}, DECODING),
                ("qwen3", SMALL | {"vocab_size": 4096}, AHEAD),
                ("qwen3_moe", SMALL | {"moe_intermediate_size": 128}, BOTH),
                ("llama", SMALL, PREFIXES),
                ("llama", SMALL, ENDS_AT_ONCE),
            )
        ),
    ],
)
def test_a_forecast_is_one_to_one_and_a_quarter_times_the_measured_peak(
    architecture: str, fields: dict[str, Any], load: Load
) -> None:
    limits = EngineLimits(
        cache_bytes=int(load.cache_mib * MIB),
        prefix_bytes=int(load.prefix_mib * MIB),
        prefill_tokens=load.prefill_tokens,
        decode_ahead=load.decode_ahead,
    )
    planned = EngineForecast(small_model(architecture, **fields), limits).peak_bytes(1 << 40)
    measured = measured_peak(
        small_model(architecture, **fields), fields["vocab_size"], limits, load
    )
    assert 1.0 <= planned / measured <= 1.25


def measured_peak(tree: Any, num_vocabulary: int, limits: EngineLimits, load: Load) -> int:
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


def test_a_forecast_allocates_nothing() -> None:
    tree = small_model("llama", **SMALL)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    assert EngineForecast(tree, EngineLimits(cache_bytes=1 << 36)).peak_bytes(0) > 1 << 36
    assert mx.get_peak_memory() - before < 1 << 20


MODELS = json.loads(USUAL_MODELS.read_text())


@pytest.mark.parametrize(
    ("name", "bits", "tokens"),
    [
        ("Qwen3 1.7B", 16, (512, 4096, 4096, 4096)),
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
    tree = shapes_of(tmp_path)
    planned = EngineForecast(tree, EngineLimits())
    free = [usable_on(gb) - num_bytes(tree.parameters()) for gb in (8, 16, 64, 128)]
    assert [planned.prefill_tokens(each) for each in free] == list(tokens)
    assert planned.prefill_tokens(-1) == 512  # as while rows are decoded
    set_by_hand = EngineForecast(tree, EngineLimits(prefill_tokens=tokens[0]))
    assert planned.peak_bytes(free[0]) == set_by_hand.peak_bytes(free[0])


def test_rows_of_unlike_lengths_stay_within_the_bytes_that_are_reserved(
    room: Callable[..., EngineRoom],
) -> None:
    """Every row of a batch is padded to the longest one."""
    limit = room().engine._scheduler._budget.capabilities.cache_bytes(3, 900)
    one = room(cache_bytes=limit)
    lengths = [3, 4, 800, *range(5, 12)]
    one.submit(
        {
            length: Request(
                prompt_ids=tuple(range(3, 3 + length % 300)), max_tokens=30, seed=length
            )
            for length in lengths
        }
    )
    rows = 0
    while one.worker.tick():
        scheduler = one.engine._scheduler
        held = sum(layer.nbytes for layer in scheduler._rows.cache)
        assert held <= one.engine.stats()["reserved_cache_bytes"] <= limit
        rows = max(rows, len(scheduler._rows))
    assert rows > 3
    assert sorted(one.answers) == sorted(lengths)
