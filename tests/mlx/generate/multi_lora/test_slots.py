"""Adapters by row: each row computes as alone, as the trainer does, and nothing else changes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from graphs import operations
from mlx.utils import tree_flatten

from legos.errors import AdapterError, EngineError
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.load import base_arrays, load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.weights.adapter import Adapter

TOKENS = mx.array([[5, 9, 40, 77, 12], [8, 1, 300, 20, 4], [5, 9, 40, 77, 12], [3, 3, 2, 90, 91]])


def logprobs(model: Any, tokens: mx.array = TOKENS) -> np.ndarray:
    """[B, L, V]."""
    return np.array(nn.log_softmax(model(tokens).astype(mx.float32), axis=-1))


def trained(
    folder: Path, *, seed: int, rank: int = 4, alpha: float = 8.0, num_layers: int = 2
) -> tuple[Adapter, Any]:
    """A random adapter, and the tree that a trainer would have with it."""
    tree = load_tree(folder)
    shape = lora_shape(tree, rank=rank, alpha=alpha, num_layers=num_layers, head=True)
    add_lora(tree, shape, seed=0)
    rng = np.random.default_rng(seed)
    arrays = {
        name: mx.array((0.1 * rng.standard_normal(array.shape)).astype(np.float32))
        for name, array in lora_arrays(tree).items()
    }
    mx.eval(list(arrays.values()))
    set_lora_arrays(tree, arrays)
    return Adapter(name=f"policy-{seed}", version=seed, shape=shape, arrays=arrays), tree


@pytest.fixture
def folder(tiny_models: Mapping[str, Path]) -> Path:
    return tiny_models["qwen3"]


def test_rows_of_one_slot_compute_as_the_trainer(folder: Path) -> None:
    plain = logprobs(load_tree(folder))
    model = load_tree(folder)
    slots = AdapterSlots(model)
    for seed, rank in ((1, 4), (2, 7)):
        adapter, tree = trained(folder, seed=seed, rank=rank)
        slot = slots.load(adapter)
        with slots.rows([slot] * 4):
            found = logprobs(model)
        np.testing.assert_allclose(found, logprobs(tree), atol=1e-5)
        assert np.abs(found - plain).max() > 0.1
        np.testing.assert_array_equal(logprobs(model), plain)
        with slots.rows([0] * 4):
            np.testing.assert_array_equal(logprobs(model), plain)


def test_each_row_of_a_mixed_batch_computes_as_alone(folder: Path) -> None:
    trees: dict[int, Any] = {0: load_tree(folder)}
    model = load_tree(folder)
    slots = AdapterSlots(model)
    for seed, rank, num_layers in ((1, 4, 2), (2, 16, 1), (3, 1, 2)):
        adapter, tree = trained(folder, seed=seed, rank=rank, num_layers=num_layers, alpha=rank)
        trees[slots.load(adapter)] = tree
    for used in ([1, 2, 3, 0], [0, 0, 2, 0], [3, 1, 1, 1], [2, 3, 2, 3], [1, 0, 2, 3]):
        with slots.rows(used):
            found = logprobs(model)
        for row, slot in enumerate(used):
            alone = logprobs(trees[slot], TOKENS[row : row + 1])[0]
            np.testing.assert_allclose(found[row], alone, atol=1e-5)


def test_a_freed_slot_is_never_used_again(folder: Path) -> None:
    model = load_tree(folder)
    slots = AdapterSlots(model)
    first, _ = trained(folder, seed=1)
    second, other = trained(folder, seed=2, rank=9, num_layers=1)
    one, two = slots.load(first), slots.load(second)
    with slots.rows([one, two, 0, one]):
        logprobs(model)
    slots.free(one)
    assert [*slots._slots] == [0, two]
    for gone in (one, 99):
        with pytest.raises(AdapterError, match=f"no adapter in slot {gone}"):
            slots.rows([two, gone, 0, 0])
    three = slots.load(first)
    assert three not in {one, two}
    with slots.rows([three, two, 0, three]):
        found = logprobs(model)
    np.testing.assert_allclose(found[1:2], logprobs(other)[1:2], atol=1e-5)


def test_rows_nest_and_end_with_their_block(folder: Path) -> None:
    model = load_tree(folder)
    plain = logprobs(model)
    slots = AdapterSlots(model)
    adapter, tree = trained(folder, seed=1)
    slot = slots.load(adapter)
    with slots.rows([slot] * 4):
        with slots.rows([0] * 4):
            np.testing.assert_array_equal(logprobs(model), plain)
        with pytest.raises(ValueError, match="dtype"), slots.rows([0] * 4):
            model(mx.zeros((1,)))
        np.testing.assert_allclose(logprobs(model), logprobs(tree), atol=1e-5)
    np.testing.assert_array_equal(logprobs(model), plain)


def test_the_head_can_be_asked_for_places_of_rows(folder: Path) -> None:
    model: Any = load_tree(folder)
    slots = AdapterSlots(model)
    for seed in (1, 2):
        slots.load(trained(folder, seed=seed)[0])
    rows, columns = mx.array([0, 0, 1, 1, 1, 3, 3, 3]), mx.array([0, 4, 1, 2, 3, 0, 1, 4])
    used = [1, 2, 0, 2]
    with slots.rows(used):
        whole = model(TOKENS)[rows, columns]
        hidden = model.model(TOKENS)[rows, columns]
        with pytest.raises(EngineError, match=r"lm_head got an input with axes \(8,\)"):
            model.lm_head(hidden)
        with slots.rows([used[row] for row in np.array(rows)]):
            placed = model.lm_head(hidden)
    np.testing.assert_allclose(np.array(placed), np.array(whole), atol=1e-5)


def test_base_arrays_and_their_names_stay_and_adapters_are_not_copied(folder: Path) -> None:
    other = load_tree(folder)
    shared = base_arrays(other)
    model = load_tree(folder, share=shared)
    slots = AdapterSlots(model)
    adapter, _ = trained(folder, seed=1)
    before = mx.get_active_memory()
    slots.load(adapter)
    slots.load(adapter)
    assert mx.get_active_memory() - before < 1024
    after = dict(tree_flatten(model.parameters()))
    assert after.keys() == shared.keys()
    assert all(after[name] is shared[name] for name in shared)
    assert not model.trainable_parameters().get("lm_head")
    assert type(other.lm_head) is nn.Linear


def test_trees_that_share_arrays_compute_in_threads_of_their_own(folder: Path) -> None:
    """As the engine and the trainer do: the one by rows, the other with LoRA of its own."""
    adapter, tree = trained(folder, seed=1)
    want, base = logprobs(tree), logprobs(load_tree(folder))
    shared = base_arrays(load_tree(folder))
    mx.eval(list(adapter.arrays.values()))

    def engine(times: int) -> None:
        model = load_tree(folder, share=shared)
        slots = AdapterSlots(model)
        slot = slots.load(adapter)
        for _ in range(times):
            slots.free(slot)
            slot = slots.load(adapter)
            with slots.rows([slot, 0, slot, 0]):
                found = logprobs(model)
            np.testing.assert_allclose(found[::2], want[::2], atol=1e-5)
            np.testing.assert_allclose(found[1::2], base[1::2], atol=1e-5)

    def trainer(times: int) -> None:
        model = load_tree(folder, share=shared)
        add_lora(model, adapter.shape, seed=0)
        for _ in range(times):
            np.testing.assert_allclose(logprobs(model), base, atol=1e-5)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(work, 20) for work in (engine, trainer)]:
            done.result()


Broken = Callable[[dict[str, Any]], Any]
Q = "model.layers.1.self_attn.q_proj"


def without(key: str) -> Broken:
    return lambda arrays: arrays.pop(key)


def holding(key: str, array: Any) -> Broken:
    return lambda arrays: arrays.update({key: array})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without(f"{Q}.lora_b"), rf"lacks {Q}\.lora_b"),
        (
            holding(f"{Q}.lora_c", mx.zeros((1,))),
            rf"holds {Q}\.lora_c, where this model has no LoRA",
        ),
        (
            holding("model.layers.9.self_attn.q_proj.lora_a", mx.zeros((32, 4))),
            r"layers\.9.* has not",
        ),
        (holding("model.norm.lora_a", mx.zeros((32, 4))), r"model\.norm\.lora_a adapts a RMSNorm"),
        (holding("model.embed_tokens.lora_a", mx.zeros((358, 4))), "adapts an embedding"),
        (holding(f"{Q}.lora_a", mx.zeros((31, 4))), rf"{Q}\.lora_a has shape \(31, 4\)"),
        (
            holding(f"{Q}.lora_b", mx.zeros((5, 64))),
            rf"{Q}\.lora_b .*expected \(4, 64\); it needs this model",
        ),
        (
            holding(f"{Q}.lora_b", np.full((4, 64), np.nan)),
            rf"{Q}\.lora_b holds values .* not finite",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(
    folder: Path, change: Broken, told: str
) -> None:
    model = load_tree(folder)
    slots = AdapterSlots(model)
    adapter, tree = trained(folder, seed=1)
    slot = slots.load(adapter)
    arrays = dict(adapter.arrays)
    change(arrays)
    broken = replace(adapter, arrays=arrays)
    with pytest.raises(AdapterError, match=told):
        slots.load(broken)
    with slots.rows([slot] * 4):
        np.testing.assert_allclose(logprobs(model), logprobs(tree), atol=1e-5)
    assert [*slots._slots] == [0, slot]


def test_a_tree_that_has_lora_is_refused(folder: Path) -> None:
    adapter, tree = trained(folder, seed=1)
    with pytest.raises(AdapterError, match="has LoRA already"):
        AdapterSlots(tree)
    model = load_tree(folder)
    AdapterSlots(model).load(adapter)
    with pytest.raises(AdapterError, match="has LoRA already"):
        AdapterSlots(model)


def stacks(slots: AdapterSlots, used: Sequence[int], model: Any) -> list[mx.array]:
    """The stacked arrays after a forward pass."""
    with slots.rows(used):
        mx.eval(model(TOKENS))
    return [adapted._stack.b for adapted in slots._adapted.values() if adapted._stack]


def test_stacks_are_kept_until_an_adapter_changes(folder: Path) -> None:
    model = load_tree(folder)
    slots = AdapterSlots(model)
    adapter, _ = trained(folder, seed=1)
    one, two, three = (slots.load(adapter) for _ in range(3))
    assert not stacks(slots, [one] * 4, model)
    first = stacks(slots, [one, two, three, 0], model)
    assert len(first) == 15
    kept = stacks(slots, [one, two, two, 0], model)
    assert all(array is other for array, other in zip(kept, first, strict=True))
    slots.free(two)
    two = slots.load(adapter)
    remade = stacks(slots, [one, two, two, 0], model)
    assert not any(array is other for array, other in zip(remade, first, strict=True))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("used", "least"), [([1] * 4, 2), ([1, 2, 0, 1], 3)])
def test_lora_starts_few_kernels(folder: Path, dtype: Any, used: list[int], least: int) -> None:
    """On a GPU a decode step takes as long as its kernels take to start."""
    model: Any = load_tree(folder)
    model.set_dtype(dtype)
    slots = AdapterSlots(model)
    for seed in (1, 2):
        slots.load(trained(folder, seed=seed)[0])
    linear = model.layers[-1].self_attn.q_proj
    x = mx.zeros((4, 1, linear.weight.shape[1]), dtype)
    plain = kernels(linear(x))
    with slots.rows(used):
        mx.eval(linear(x))  # the arrays get the type of the model once
        adapted = kernels(linear(x))
    assert (adapted - plain).total() <= least
    assert adapted["AddMM"] == 1
    assert not adapted["AsType"]


VIEWS = ("Broadcast", "Transpose", "Reshape", "Flatten", "Unflatten", "ExpandDims", "Squeeze")


def kernels(array: mx.array) -> Counter[str]:
    """What has to be computed for an array, without changes of its shape."""
    found = operations(array)
    for name in VIEWS:
        del found[name]
    return found
