"""DoRA: the formula forward and back, one batch with LoRA and the base, and adapters on disk."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from backend_steps import optimiser_step
from mlx_lm.tuner.dora import DoRALinear
from mlx_lm.tuner.utils import load_adapters
from tiny_models import write_any_model

from legos.device.backend import LoraBackend
from legos.errors import AdapterError
from legos.fakes import make_sample
from legos.losses.objective import Objective
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.dora import DoraLinear
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays, without_lora
from legos.mlx.model.worker import InlineWorker
from legos.mlx.train.backend import mlx_backend
from legos.records.step import BackendConfig, Update
from legos.weights.adapter import Adapter, pack_adapter
from legos.weights.folder import read_adapter, write_adapter
from legos.weights.packed import unpack_adapter
from legos.weights.peft import to_peft, write_peft

TOKENS = mx.array([[5, 9, 40, 77, 12], [8, 1, 300, 20, 4], [5, 9, 40, 77, 12], [3, 3, 2, 90, 91]])
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {"architecture": "qwen2"},  # its attention has biases, its head is tied
    "4bit": {"bits": 4},
}
every_model = pytest.mark.parametrize("model", MODELS)
Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write_any_model(root / name, seed=3, **kind) for name, kind in MODELS.items()}


def logprobs(model: Any, tokens: mx.array = TOKENS) -> np.ndarray:
    """[B, L, V]."""
    return np.array(nn.log_softmax(model(tokens).astype(mx.float32), axis=-1))


def moved(arrays: Mapping[str, mx.array], rng: np.random.Generator) -> dict[str, mx.array]:
    """Arrays as after some training: magnitudes a little longer or shorter than they were."""
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        noise = rng.standard_normal(array.shape).astype(np.float32)
        kept = name.rpartition(".")[2] == "m"
        found[name] = array * (1 + 0.2 * noise) if kept else mx.array(0.1 * noise)
    mx.eval(found)
    return found


def trained(
    folder: Path, *, seed: int, rank: int = 4, use_dora: bool = True, num_layers: int = 2
) -> tuple[Adapter, Any]:
    """A random adapter, and the tree that a trainer would have with it."""
    tree = load_tree(folder)
    shape = lora_shape(
        tree, rank=rank, alpha=8.0, num_layers=num_layers, head=True, use_dora=use_dora
    )
    add_lora(tree, shape, seed=0)
    arrays = moved(lora_arrays(tree), np.random.default_rng(seed))
    set_lora_arrays(tree, arrays)
    return Adapter(name=f"policy-{seed}", version=seed, shape=shape, arrays=arrays), tree


def linear_of(kind: str) -> nn.Module:
    """A linear module of 64 inputs and 24 outputs, whose third row is zero unless quantised."""
    rng = np.random.default_rng(0)
    linear = nn.Linear(64, 24, bias=kind == "biased")
    weight = rng.standard_normal((24, 64)).astype(np.float32)
    weight[2] = 0.0 if kind == "empty row" else weight[2]
    linear.weight = mx.array(weight)
    if kind == "biased":
        linear.bias = mx.array(rng.standard_normal(24).astype(np.float32))
    return nn.QuantizedLinear.from_linear(linear, 32, 4) if kind == "quantised" else linear


def dora_of(linear: nn.Module, *, seed: int = 1) -> DoraLinear:
    module = DoraLinear(linear, rank=3, scale=2.0)
    rng = np.random.default_rng(seed)
    module.update(moved({"lora_a": module.lora_a, "lora_b": module.lora_b, "m": module.m}, rng))
    return module


@pytest.mark.parametrize("kind", ["plain", "biased", "quantised"])
def test_the_output_is_that_of_mlx_lm(kind: str) -> None:
    linear = linear_of(kind)
    ours = dora_of(linear)
    theirs = DoRALinear.from_base(linear, r=3, scale=2.0)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(np.array(DoraLinear(linear, rank=3, scale=2.0).m), theirs.m, 1e-6)
    theirs.update({"lora_a": ours.lora_a, "lora_b": ours.lora_b, "m": ours.m})
    x = mx.array(np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32))
    np.testing.assert_allclose(np.array(ours(x)), np.array(theirs(x)), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(np.array(ours.merged()(x)), np.array(ours(x)), rtol=1e-5, atol=2e-5)


def test_a_row_of_zeros_stays_one_until_it_is_adapted() -> None:
    x = mx.array(np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32))
    fresh = DoraLinear(linear_of("empty row"), rank=3, scale=2.0)
    for module in (fresh, dora_of(fresh.linear)):
        for output in (module(x), module.merged()(x)):
            assert np.isfinite(np.array(output)).all()
            assert not np.array(output)[:, 2].any()


@pytest.mark.parametrize("kind", ["plain", "biased", "quantised"])
def test_gradients_are_those_of_the_formula_with_its_lengths_held(kind: str) -> None:
    """Against finite differences in float64 of m / c * (W x + s (A B)^T x), c as it is now."""
    linear = linear_of(kind)
    module = dora_of(linear)
    rng = np.random.default_rng(3)
    x, along = rng.standard_normal((5, 64)), rng.standard_normal((5, 24))

    def loss(module: DoraLinear) -> mx.array:
        y = module(mx.array(x.astype(np.float32)))
        return mx.sum(y * mx.array(along.astype(np.float32)))

    _, found = nn.value_and_grad(module, loss)(module)
    assert found.keys() == {"lora_a", "lora_b", "m", "linear"}
    weight = np.array(module.merged().weight, np.float64)
    a, b, m = (np.array(module[name], np.float64) for name in ("lora_a", "lora_b", "m"))
    lengths = np.linalg.norm(plain_weight(linear) + 2.0 * (a @ b).T, axis=1)
    np.testing.assert_allclose(np.linalg.norm(weight, axis=1), np.abs(m), rtol=1e-5)

    def formula(lora_a: np.ndarray, lora_b: np.ndarray, m: np.ndarray) -> float:
        rows = (m / lengths)[:, None] * (plain_weight(linear) + 2.0 * (lora_a @ lora_b).T)
        return float(((x @ rows.T) * along).sum())

    values = {"lora_a": a, "lora_b": b, "m": m}
    for name, value in values.items():
        expected = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            step = np.zeros_like(value)
            step[place] = 1e-5
            up, down = (formula(**(values | {name: value + s})) for s in (step, -step))
            expected[place] = (up - down) / 2e-5
        np.testing.assert_allclose(np.array(found[name]), expected, rtol=1e-4, atol=1e-3)


def plain_weight(linear: Any) -> np.ndarray:
    """[out, in] float64."""
    if isinstance(linear, nn.QuantizedLinear):
        return np.array(mx.dequantize(linear.weight, linear.scales, linear.biases, 32, 4), float)
    return np.array(linear.weight, np.float64)


@every_model
def test_before_training_and_without_lora_the_tree_is_the_base(
    folders: Mapping[str, Path], model: str
) -> None:
    plain = logprobs(load_tree(folders[model]))
    _, tree = trained(folders[model], seed=1)
    assert np.abs(logprobs(tree) - plain).max() > 0.1
    with without_lora(tree):
        with without_lora(tree):
            pass
        np.testing.assert_array_equal(logprobs(tree), plain)
    assert np.abs(logprobs(tree) - plain).max() > 0.1
    fresh = load_tree(folders[model])
    add_lora(fresh, lora_shape(fresh, rank=4, alpha=8.0, num_layers=2, head=True, use_dora=True),
             seed=0)  # fmt: skip
    np.testing.assert_allclose(logprobs(fresh), plain, atol=1e-5)
    assert any(name.endswith(f"{Q}.m") for name in lora_arrays(fresh))


@every_model
def test_rows_with_dora_with_lora_and_with_neither_compute_as_alone(
    folders: Mapping[str, Path], model: str
) -> None:
    folder = folders[model]
    trees: dict[int, Any] = {0: load_tree(folder)}
    engine = load_tree(folder)
    slots = AdapterSlots(engine)
    for seed, rank, use_dora, num_layers in ((1, 4, True, 2), (2, 7, True, 1), (3, 5, False, 2)):
        adapter, tree = trained(
            folder, seed=seed, rank=rank, use_dora=use_dora, num_layers=num_layers
        )
        trees[slots.load(adapter)] = tree
    for used in (
        [1, 2, 3, 0],
        [1, 1, 1, 1],
        [0, 0, 2, 0],
        [2, 2, 2, 2],
        [3, 3, 0, 0],
        [3, 1, 1, 3],
    ):
        with slots.rows(used):
            found = logprobs(engine)
        for row, slot in enumerate(used):
            alone = logprobs(trees[slot], TOKENS[row : row + 1])[0]
            np.testing.assert_allclose(found[row], alone, atol=1e-5)


def test_a_slot_changes_between_dora_and_lora(folders: Mapping[str, Path]) -> None:
    engine = load_tree(folders["llama"])
    plain = logprobs(engine)
    slots = AdapterSlots(engine)
    dora, lora = (trained(folders["llama"], seed=1, use_dora=kind) for kind in (True, False))
    other = trained(folders["llama"], seed=2)
    slot = slots.load(dora[0])
    for adapter, tree in (lora, other, dora, lora):
        slots.free(slot)
        slot = slots.load(adapter)
        for used in ([slot] * 4, [slot, 0, slot, 0]):
            with slots.rows(used):
                found = logprobs(engine)
            np.testing.assert_allclose(found[::2], logprobs(tree)[::2], atol=1e-5)
    np.testing.assert_array_equal(logprobs(engine), plain)


def test_magnitudes_alone_are_served_and_untrained_ones_cost_nothing(
    folders: Mapping[str, Path],
) -> None:
    folder = folders["llama"]
    tree = load_tree(folder)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True, use_dora=True)
    add_lora(tree, shape, seed=0)
    adapter = Adapter(name="policy", version=0, shape=shape, arrays=lora_arrays(tree))
    engine = load_tree(folder)
    slots = AdapterSlots(engine)
    slots.load(adapter)
    assert not slots._adapted
    longer = {Q + ".m": 1.5 * adapter.arrays[Q + ".m"]}
    slot = slots.load(replace(adapter, arrays={**adapter.arrays, **longer}))
    assert list(slots._adapted) == [Q]
    set_lora_arrays(tree, longer)
    with slots.rows([slot] * 4):
        np.testing.assert_allclose(logprobs(engine), logprobs(tree), atol=1e-5)


def test_what_does_not_fit_is_refused_by_name(folders: Mapping[str, Path]) -> None:
    slots = AdapterSlots(load_tree(folders["llama"]))
    dora, tree = trained(folders["llama"], seed=1)
    lora, other = trained(folders["llama"], seed=1, use_dora=False)
    without = {name: array for name, array in dora.arrays.items() if name != f"{Q}.m"}
    holding = {**dora.arrays, f"{Q}.m": mx.ones((5,))}
    infinite = {**dora.arrays, f"{Q}.m": dora.arrays[f"{Q}.m"] * mx.inf}
    for arrays, told in (
        (without, rf"lacks {Q}\.m; expected lora_a and lora_b and m"),
        (holding, rf"{Q}\.m has shape \(5,\), expected \(\d+,\)"),
        (infinite, rf"{Q}\.m holds values that are not finite"),
    ):
        with pytest.raises(AdapterError, match=told):
            slots.load(replace(dora, arrays=arrays))
    with pytest.raises(AdapterError, match=r"\.m is neither <module>\.lora_a nor"):
        slots.load(replace(lora, arrays=dora.arrays))
    assert slots.slots == (0,)
    worker = InlineWorker()
    with pytest.raises(AdapterError, match=r"\.m; .* set training\.use_dora to false"):
        mlx_backend(worker, tree, dora.shape).load(lora)
    with pytest.raises(AdapterError, match=r"\.m, .* set training\.use_dora to true"):
        mlx_backend(worker, other, lora.shape).load(dora)


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_any_model(tmp_path / "model", architecture="qwen3_moe")
    tree = load_tree(folder)
    with pytest.raises(AdapterError, match=r"mlp\.switch_mlp\.\w+ is a SwitchLinear; DoRA is"):
        lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False, use_dora=True)
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False)
    with pytest.raises(AdapterError, match=r"switch_mlp\.\w+ is a SwitchLinear"):
        add_lora(tree, replace(shape, use_dora=True), seed=0)
    add_lora(tree, shape, seed=0)
    arrays = moved(lora_arrays(tree), np.random.default_rng(0))
    for name in list(arrays):
        if name.endswith("lora_b"):
            outputs = arrays[name].shape[-1 if arrays[name].ndim == 2 else -2]
            lead = arrays[name].shape[:-2]
            arrays[name.replace("lora_b", "m")] = mx.ones((*lead, outputs))
    adapter = Adapter(name="p", version=1, shape=replace(shape, use_dora=True), arrays=arrays)
    with pytest.raises(AdapterError, match=r"switch_mlp\.\w+ is a SwitchLinear"):
        AdapterSlots(load_tree(folder)).load(adapter)


@every_model
def test_a_folder_is_loaded_by_mlx_lm(
    folders: Mapping[str, Path], tmp_path: Path, model: str
) -> None:
    adapter, tree = trained(folders[model], seed=1)
    write_adapter(adapter, tmp_path)
    theirs = load_adapters(load_tree(folders[model]), str(tmp_path))
    theirs.eval()
    kinds = {type(module) for _, module in theirs.named_modules()}
    assert DoRALinear in kinds
    np.testing.assert_allclose(logprobs(theirs), logprobs(tree), atol=5e-5)
    again = read_adapter(tmp_path)
    assert (again.info, again.shape) == (adapter.info, adapter.shape)
    assert unpack_adapter(pack_adapter(adapter)).shape.use_dora
    assert unpack_adapter(pack_adapter(adapter)).info == adapter.info


def test_a_folder_comes_back_from_pefts_format(folders: Mapping[str, Path], tmp_path: Path) -> None:
    adapter, tree = trained(folders["llama"], seed=1)
    write_peft(adapter, tmp_path)
    again = read_adapter(tmp_path)
    assert again.info == adapter.info
    assert again.shape.use_dora
    other = load_tree(folders["llama"])
    add_lora(other, again.shape, seed=5)  # names from the layers on, as PEFT's files tell them
    assert lora_arrays(other).keys() == lora_arrays(tree).keys()
    files = to_peft(adapter)
    assert files.config["use_dora"] is True
    modules = dict(tree.named_modules())
    for place in (Q, "lm_head"):
        a, b, m = (
            files.tensors[f"base_model.model.{place}.{part}"]
            for part in ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")
        )
        adapted = np.array(modules[place].linear.weight) + 2.0 * b @ a  # as PEFT has it
        expected = (m / np.linalg.norm(adapted, axis=1))[:, None] * adapted
        np.testing.assert_allclose(np.array(modules[place].merged().weight), expected, atol=1e-5)


TEXT = (5, 6, 7, 8, 9, 10, 11)
PROMPT = 3


def likelihood(tree: Any) -> float:
    """Mean log-probability of the text after the prompt."""
    found = logprobs(tree, mx.array([TEXT[:-1]]))[0, PROMPT - 1 :]
    return float(found[np.arange(len(TEXT) - PROMPT), list(TEXT[PROMPT:])].mean())


def step(tree: Any, backend: LoraBackend, ema_decay: float | None = None, **objective: Any) -> None:
    sample = make_sample(
        TEXT, positions=range(PROMPT, len(TEXT)), logprobs=likelihood(tree), advantages=1.0
    )
    chosen = Objective(loss="reinforce", **objective)
    update = Update(learning_rate=1e-2, ema_decay=ema_decay)
    assert optimiser_step(backend, [sample], chosen, update=update).reason is None


@every_model
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_what_is_rewarded_gets_likelier_and_rows_change_their_length(
    folders: Mapping[str, Path], model: str, gradient_checkpointing: bool
) -> None:
    tree = load_tree(folders[model])
    shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=False, use_dora=True)
    add_lora(tree, shape, seed=0)
    worker = InlineWorker()
    config = BackendConfig(gradient_checkpointing=gradient_checkpointing)
    backend = mlx_backend(worker, tree, shape, config)
    first = backend.adapter()
    engine = load_tree(folders[model])
    slots = AdapterSlots(engine)
    seen = [likelihood(tree)]
    for _ in range(6):
        step(tree, backend)
        slot = slots.load(backend.adapter())
        with slots.rows([slot]):
            served = logprobs(engine, mx.array([TEXT]))
        np.testing.assert_allclose(served, logprobs(tree, mx.array([TEXT])), atol=1e-5)
        seen.append(likelihood(tree))
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] + 0.5
    last = backend.adapter()
    changes = [
        mx.abs(last.arrays[n] - first.arrays[n]).max() for n in last.arrays if n[-2:] == ".m"
    ]
    assert min(np.array(mx.stack(changes))) > 1e-3


def test_the_average_and_the_optimiser_hold_magnitudes_and_are_restored(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    def backend() -> tuple[Any, LoraBackend]:
        tree = load_tree(folders["llama"])
        shape = lora_shape(tree, rank=4, alpha=8.0, num_layers=2, head=True, use_dora=True)
        add_lora(tree, shape, seed=0)
        return tree, mlx_backend(InlineWorker(), tree, shape)

    objective = {"kl_coef": 0.1, "ema_kl_coef": 0.2, "ema_decay": 0.5}
    tree, one = backend()
    for _ in range(3):
        step(tree, one, **objective)
    average = one._policies["policy"].ema
    gap = np.array(mx.abs(average[f"{Q}.m"] - one.adapter().arrays[f"{Q}.m"]))
    assert 1e-4 < gap.max() < 0.1
    one.snapshot().result()(tmp_path)
    again, other = backend()
    other.restore(tmp_path)
    assert other.adapter().info == one.adapter().info
    step(tree, one, **objective)
    step(again, other, **objective)
    assert other.adapter().info == one.adapter().info
