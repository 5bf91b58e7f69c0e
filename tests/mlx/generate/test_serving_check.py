"""Architectures that the engine would serve with wrong log-probabilities are refused at load."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, KVCache

from legos.errors import ModelError
from legos.mlx.checks import small_models
from legos.mlx.checks.small_models import small_model
from legos.mlx.generate.batch_cache import BatchCache
from legos.mlx.generate.capabilities import Capabilities, probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill import Prefill, last_logits
from legos.mlx.generate.prefix_cache import PrefixCache
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.machine import num_bytes, peak_bytes


def probed(architecture: str, **options: Any) -> Capabilities:
    model = small_model(architecture, **options)
    return probe(CausalModel(model), AdapterSlots(model))


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("gemma3n", "rows in chunks get other .* without a cache, by up to .* nats"),
        ("plamo3", "rows in chunks get other .* without a cache, by up to .* nats"),
        ("mamba", "in a batch, rows of unlike lengths get other .* by up to .* nats"),
        ("llama4", "its ChunkedKVCache cannot be merged into a batch"),
        ("muse_spark", "No Metal back-end"),
        ("dbrx", "IndexError"),
        ("afm7", "qkv_proj gives several arrays, so LoRA on it is not served"),
    ],
)
def test_an_architecture_with_other_numbers_is_refused(architecture: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{architecture} cannot be .*{reason}.*; take a model of"):
        probed(architecture)


@pytest.mark.parametrize("architecture", ["nemotron_h", "mamba"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_16_bits_hide_nothing(
    architecture: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_models, "patch", id)  # nemotron_h as mlx-lm has it
    with pytest.raises(ModelError, match="rows of unlike lengths get other"):
        probed(architecture, seed=seed, dtype=mx.bfloat16)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_what_is_right_is_served_in_every_type(dtype: Any) -> None:
    for architecture in ("llama", "gemma3_text", "lfm2"):
        probed(architecture, dtype=dtype)


@pytest.mark.parametrize("lengths", [(1, 2), (6, 3, 12)])
def test_a_padded_chunk_of_one_token_is_prefilled(lengths: tuple[int, ...]) -> None:
    """A sliding window takes one token for a decoding step, which cannot be padded."""
    forward = CausalModel(small_model("gemma3_text"))
    rows = [tuple(range(1, length + 1)) for length in lengths]
    cache = BatchCache(forward.model)
    prefill = Prefill(forward, rows, [([], 0)] * len(rows), cache=cache, step=1)
    while not prefill.advance(5 * len(rows)):
        pass
    expected = last_logits(forward, rows)
    assert mx.allclose(prefill.logits(), expected, atol=1e-4).item()


def test_a_kernel_that_lacks_the_type_is_named() -> None:
    with pytest.raises(ModelError, match=r"qwen3_moe cannot be run: .*only supports float32"):
        probed("qwen3_moe", dtype=mx.bfloat16)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_check_needs_little_memory_beside_weights_in_16_bits() -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16, "head_dim": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 1}  # else caches are what it needs
    model = small_model("llama", dtype=mx.bfloat16, **sizes, **heads)
    forward = CausalModel(model)
    peak = peak_bytes(lambda: probe(forward, AdapterSlots(model)))
    assert peak < 0.3 * num_bytes(model.parameters())


def test_a_partial_hit_does_not_trim_the_stored_entry() -> None:
    layer = CacheList(KVCache(), KVCache())
    tokens = tuple(range(200))
    for part in layer.caches:
        part.update_and_fetch(mx.zeros((1, 1, 200, 4)), mx.zeros((1, 1, 200, 4)))
    prefixes = PrefixCache(1 << 20)
    prefixes.add(0, tokens, [layer])
    found = prefixes.find(0, (*tokens[:100], 7, 8, 9))
    assert found is not None
    (partial,), length = found[0](), found[1]
    assert length == 100
    assert [part.offset for part in partial.caches] == [100, 100]
    assert [part.offset for part in layer.caches] == [200, 200]


def test_the_check_finds_a_cache_that_is_trimmed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    import copy

    def shallow(cache: list[Any]) -> list[Any]:
        return [copy.copy(layer) for layer in cache]

    monkeypatch.setattr("legos.mlx.generate.prefix_cache.copied", shallow)
    monkeypatch.setattr("legos.mlx.generate.serving_check.copied", shallow)
    with pytest.raises(ModelError, match=r"deepseek_v32 .* rows that continue a cached prefix get"):
        probed("deepseek_v32")
