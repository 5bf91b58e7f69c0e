"""Every architecture computes in a batch what it computes alone, with and without adapters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from numpy.typing import NDArray

from legos.errors import EngineError
from legos.mlx.generate.batch_cache import BatchCache
from legos.mlx.generate.capabilities import Capabilities, probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.generate.prefill import Prefill
from legos.mlx.model.forecast import Sizes
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.weights.adapter import Adapter

LAYERS = 2


def logprobs(model: Any, tokens: Any) -> NDArray[np.float32]:
    """[B, L, V] without a cache."""
    rows = mx.array(np.atleast_2d(np.array(tokens)))
    return np.array(nn.log_softmax(model(rows), axis=-1))


class Rows:
    """Rows that are prefilled and decoded as the engine does it, in the order of their slots."""

    def __init__(
        self,
        forward: CausalModel,
        rng: np.random.Generator,
        lengths: Sequence[int],
        chunk: int = 512,
    ) -> None:
        self.forward = forward
        self.rng = rng
        self.chunk = chunk
        self.cache = BatchCache(forward.model)
        self.tokens: list[list[int]] = []
        self.join(lengths)

    def join(self, lengths: Sequence[int]) -> None:
        new = [list(map(int, self.rng.integers(3, 350, length))) for length in lengths]
        rows = [tuple(row) for row in new]
        known = [([], 0)] * len(new)
        prefill = Prefill(self.forward, rows, known, cache=self.cache, step=self.chunk)
        while not prefill.advance(self.chunk):
            pass
        self.logprobs = np.array(nn.log_softmax(prefill.logits(), axis=-1))
        self.cache.join(prefill.block, range(len(new)))
        self.tokens += new

    def step(self) -> None:
        self.tokens = [self.tokens[slot] for slot in self.cache.settle()]
        self.cache.decode()
        for row in self.tokens:
            row.append(int(self.rng.integers(3, 350)))
        last = mx.array([row[-1] for row in self.tokens])
        logits = self.forward.next_logits(last, self.cache.layers)
        self.logprobs = np.array(nn.log_softmax(logits, axis=-1))

    def keep(self, sources: Sequence[int]) -> None:
        slots = self.cache.fork(sources)
        kept = {slot: list(self.tokens[old]) for slot, old in zip(slots, sources, strict=True)}
        self.tokens = [kept.get(slot, []) for slot in range(max(slots) + 1)]

    def check(self, models: Sequence[Any]) -> None:
        """Each row is what its model computes alone and without a cache."""
        assert len(models) == len(self.tokens)
        for found, row, model in zip(self.logprobs, self.tokens, models, strict=True):
            np.testing.assert_allclose(found, logprobs(model, row)[0, -1], atol=1e-5)


def test_rows_of_a_batch_compute_as_alone(folders: Mapping[str, Path], architecture: str) -> None:
    model = load_tree(folders[architecture])
    rng = np.random.default_rng(0)
    rows = Rows(CausalModel(model), rng, (3, 17, 9, 2, 30))
    rows.check([model] * 5)
    rows.step()
    rows.keep([2, 0, 0, 1])  # one is forked, two are gone, and the order is another one
    for _ in range(2):
        rows.step()
        rows.check([model] * 4)
    rows.join((12, 2, 40))
    for _ in range(11):
        rows.step()
    rows.check([model] * 7)
    rows.keep([6, 3])
    rows.step()
    rows.check([model] * 2)


def test_four_bits_hold_the_weights_to_half_a_step(folders: Mapping[str, Path]) -> None:
    whole, packed = (load_tree(folders[name]) for name in ("llama", "llama_4bit"))
    modules = dict(packed.named_modules())
    quantised = 0
    for name, module in whole.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            other: Any = modules[name]
            assert (other.bits, other.group_size) == (4, 32)
            found = mx.dequantize(other.weight, other.scales, other.biases, 32, 4)
            step = mx.repeat(other.scales, 32, axis=-1)
            assert mx.all(mx.abs(found - module.weight) <= 0.501 * step).item(), name
            quantised += 1
    assert quantised == 7 * LAYERS + 2


def test_prompts_in_pieces_compute_as_whole(folders: Mapping[str, Path], architecture: str) -> None:
    """Pieces of 256 tokens: mlx-lm's state-space layers get unlike rows wrong in other ones."""
    model = load_tree(folders[architecture])
    rows = Rows(CausalModel(model), np.random.default_rng(0), (600, 400, 256, 5), 256)
    rows.check([model] * 4)


def trained(folder: Path, *, seed: int, rank: int, num_layers: int) -> tuple[Adapter, Any]:
    """A random adapter, and the tree that a trainer would have with it."""
    tree = load_tree(folder)
    shape = lora_shape(tree, rank=rank, alpha=2.0 * rank, num_layers=num_layers, head=True)
    add_lora(tree, shape, seed=0)
    rng = np.random.default_rng(seed)
    arrays = {
        name: mx.array((0.05 * rng.standard_normal(array.shape)).astype(np.float32))
        for name, array in lora_arrays(tree).items()
    }
    set_lora_arrays(tree, arrays)
    return Adapter(name=f"policy-{seed}", version=seed, shape=shape, arrays=arrays), tree


def test_adapters_by_row_compute_as_in_trees_of_their_own(
    folders: Mapping[str, Path], architecture: str
) -> None:
    folder = folders[architecture]
    model = load_tree(folder)
    forward, slots = CausalModel(model), AdapterSlots(model)
    trees: dict[int, Any] = {0: load_tree(folder)}
    for seed, rank, num_layers in ((1, 4, LAYERS), (2, 6, 1)):
        adapter, tree = trained(folder, seed=seed, rank=rank, num_layers=num_layers)
        trees[slots.load(adapter)] = tree
    rng = np.random.default_rng(5)
    for used in ([1] * 4, [2] * 4, [0] * 4, [1, 0, 2, 1], [2, 2, 0, 0]):
        models = [trees[slot] for slot in used]
        with slots.rows(used):
            rows = Rows(forward, rng, (3, 17, 9, 40))
            rows.step()
        rows.check(models)
        base = np.stack([logprobs(trees[0], row)[0, -1] for row in rows.tokens])
        changed = np.abs(rows.logprobs - base).max(axis=-1) > 0.05
        assert changed.tolist() == [slot > 0 for slot in used]
        with slots.rows([used[3], used[1], used[2]]):
            rows.keep([1, 2, 3])  # the last row moves into the slot of the first
            rows.step()
        rows.check([models[3], models[1], models[2]])


def test_experts_that_sort_their_tokens_know_the_rows(folders: Mapping[str, Path]) -> None:
    """With 64 tokens and experts or more, mlx-lm computes them in the order of the experts."""
    folder = folders["qwen3_moe"]
    model: Any = load_tree(folder)
    slots = AdapterSlots(model)
    trees: list[Any] = [load_tree(folder)]
    for seed in (1, 2):
        adapter, tree = trained(folder, seed=seed, rank=4, num_layers=LAYERS)
        assert any("switch_mlp" in name for name in adapter.arrays)
        slots.load(adapter)
        trees.append(tree)
    tokens = np.random.default_rng(7).integers(3, 350, (5, 23))
    used = [0, 1, 2, 2, 1]
    with slots.rows(used):
        found = logprobs(model, tokens)
    for row, slot in enumerate(used):
        np.testing.assert_allclose(found[row], logprobs(trees[slot], tokens[row])[0], atol=1e-5)
    block = model.layers[0]["mlp"]["switch_mlp"]
    x, experts = mx.random.normal((5, 3, 32), key=mx.random.key(1)), mx.arange(30) % 8
    with slots.rows(used):
        whole = block(x, experts.reshape(5, 3, 2))
        flat = block(x.reshape(15, 32), experts.reshape(15, 2)).reshape(whole.shape)
        np.testing.assert_allclose(np.array(flat), np.array(whole), atol=1e-6)
        with pytest.raises(EngineError, match=r"up_proj got an input with axes \(7, 3\)"):
            block(mx.zeros((7, 3, 32)), mx.zeros((7, 3, 2), mx.uint32))


KEY_VALUE = 2 * 2 * 16 * 4  # bytes of a token in a layer: keys and values, 2 heads of 16, fp32
EXPECTED = {
    "llama": (("KVCache",), LAYERS * KEY_VALUE, 0),
    "llama_4bit": (("KVCache",), LAYERS * KEY_VALUE, 0),
    "qwen2": (("KVCache",), LAYERS * KEY_VALUE, 0),
    "qwen3": (("KVCache",), LAYERS * KEY_VALUE, 0),
    "qwen3_moe": (("KVCache",), LAYERS * KEY_VALUE, 0),
    "gemma3_text": (("KVCache", "RotatingKVCache"), KEY_VALUE, 8 * KEY_VALUE),
    # of each layer: the last 3 of 96 convolved channels, and 4 heads of 16 with 16 states
    "falcon_h1": (
        ("ArraysCache", "KVCache"),
        LAYERS * KEY_VALUE, LAYERS * 4 * (3 * 96 + 4 * 16 * 16),
    ),
    # of one layer in two: the last 2 of 32 channels
    "lfm2": (("ArraysCache", "KVCache"), KEY_VALUE, 4 * 2 * 32),
    # of one layer in two: the last 3 of 64 channels, and 4 heads of 8 x 8
    "qwen3_5": (
        ("ArraysCache", "KVCache"), KEY_VALUE, 4 * (3 * 64 + 4 * 8 * 8)
    ),
}  # fmt: skip


def test_what_caches_can_do_and_cost_is_found_out(
    folders: Mapping[str, Path], architecture: str
) -> None:
    model = load_tree(folders[architecture])
    found = probe(CausalModel(model), AdapterSlots(model))
    caches, per_token, per_row = EXPECTED[architecture]
    assert (found.sizes.token_bytes, found.sizes.row_bytes) == (per_token, per_row)
    assert found == Capabilities(
        sizes=Sizes.of(model),
        prompt_step=256 if "ArraysCache" in caches else 1,
        shares_prefix=set(caches) == {"KVCache"},
    )
    rows = Rows(CausalModel(model), np.random.default_rng(0), (300, 40, 2))
    assert (
        sum(layer.nbytes for layer in rows.cache.layers) <= found.cache_bytes(3, 300, 256) + 10_000
    )
