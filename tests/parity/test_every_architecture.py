"""Every architecture of mlx-lm, small and random: right, or refused with the reason.

What the engine samples is compared with a model of merged weights and no cache, and the trainer's
gradients with those of a loss written here, row by row. ``TABLE`` says what each can do, so that an
architecture which changes sides is seen.
"""

import os
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import SwitchLinear

from legos.data.limits import EngineLimits
from legos.data.request import Generated, Request, Result
from legos.errors import LegosError
from legos.losses.objective import Objective
from legos.mlx.checks.small_models import VOCABULARY, architectures, small_model
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.mlx.model.worker import InlineWorker
from legos.mlx.train.packing import StepSamples
from legos.mlx.train.step_gradients import StepGradients
from legos.testing import make_sample
from legos.weights.adapter import Adapter, LoraShape

NOT_TRIED = {
    "olmo": "needs a package that is not installed",
    "phi3small": "its block-sparse attention ends the process",
    "prism_hadamard_qwen35": "has packed weights only",
    "bitnet": "needs Metal",
    "muse_spark": "needs Metal",
    "recurrent_gemma": "mlx-lm cannot build it",
}
NOT_SERVED = {
    "afm7", "baichuan_m1", "bailing_moe_linear", "deepseek_v41", "gemma2", "gemma3n", "gpt_bigcode",
    "jamba", "llama4", "longcat_flash_ngram", "mamba", "nemotron_h", "olmo_hybrid", "plamo3",
    "rwkv7",
}  # fmt: skip
NO_ADAPTERS = {"dbrx", "kimi_k3"}
NOT_TRAINED = {"deepseek_v41", "gemma3n", "kimi_k3"}
NOT_CHECKPOINTED = {"afm7"}
OWN_LORA = {"afm7"}  # mlx-lm adapts it with layers of its own, which are not merged here
Arrays = Mapping[str, mx.array]


class Ticks(InlineWorker):
    """A worker whose ticks are asked for."""

    def wake(self) -> None:
        """Nothing: the test ticks."""


def adapter(model: Any, seed: int) -> Adapter:
    shape = lora_shape(model, rank=2, alpha=4.0, num_layers=8, head=False)
    tree = small_model_with(model, shape)
    rng = np.random.default_rng(seed)
    arrays = {
        name: mx.array(0.1 * rng.standard_normal(array.shape), mx.float32)
        for name, array in lora_arrays(tree).items()
    }
    return Adapter(name=f"policy-{seed}", version=seed, shape=shape, arrays=arrays)


def small_model_with(name: Any, shape: LoraShape) -> Any:
    tree = small_model(name) if isinstance(name, str) else name
    add_lora(tree, shape, seed=0)
    return tree


def merged(name: str, arrays: Arrays, scale: float) -> Any:
    """A new model whose weights are W + scale (A B)^T."""
    model = small_model(name)
    modules: Any = dict(model.named_modules())
    pairs = {key.removesuffix(".lora_a") for key in arrays if key.endswith(".lora_a")}
    weights: list[tuple[str, mx.array]] = []
    for path in pairs:
        a, b = arrays[f"{path}.lora_a"], arrays[f"{path}.lora_b"]
        product = b @ a if isinstance(modules[path], SwitchLinear) else (a @ b).T
        weights.append((f"{path}.weight", modules[path].weight + scale * product))
    model.update(tree_unflatten(weights))
    return model


def logprobs(model: Any, tokens: tuple[int, ...]) -> mx.array:
    """[T, V] of one row, without a cache."""
    logits = model(mx.array([tokens]))[0].astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def check_engine(name: str) -> None:
    adapters = [adapter(small_model(name), seed) for seed in (1, 2, 3)]
    models = {a.name: merged(name, a.arrays, a.shape.scale) for a in adapters}
    models["base"] = small_model(name)
    worker = Ticks()
    limits = EngineLimits(max_rows=8, prefill_tokens=600, chunk_tokens=64)
    engine = MlxEngine(
        worker, small_model(name), num_vocabulary=VOCABULARY, context=1024, limits=limits
    )
    for one in adapters[:2]:
        assert all(key.endswith((".lora_a", ".lora_b")) for key in one.arrays), name
        engine.load_adapter(one).result()

    def ask(requests: list[Request]) -> None:
        answers: dict[int, Result] = {}
        engine.submit(list(enumerate(requests)), lambda results: answers.update(results))
        while engine._tick():
            pass
        for number, request in enumerate(requests):
            answer = answers[number]
            assert isinstance(answer, Generated), answer
            whole = request.prompt_ids + answer.token_ids
            expected = np.array(logprobs(models[request.adapter], whole))
            start = len(request.prompt_ids)
            chosen = expected[np.arange(start - 1, len(whole) - 1), list(answer.token_ids)]
            np.testing.assert_allclose(answer.logprobs, chosen, atol=2e-4, err_msg=name)

    rng = np.random.default_rng(0)
    long = tuple(map(int, rng.integers(1, 60, 90)))
    prompts = (long, long[:7], (5,), tuple(map(int, rng.integers(1, 60, 33))))
    names = ("policy-1", "policy-2", "base")
    ask([
        Request(prompt_ids=p, max_tokens=3 + n, seed=n, adapter=names[n % 3])
        for n, p in enumerate((*prompts, long))
    ])  # fmt: skip
    engine.load_adapter(adapters[2]).result()
    partial = ((*long[:70], 9, 8, 7), (*long, 4, 4), (*long[:66], 1))
    ask([
        Request(prompt_ids=p, max_tokens=3, seed=n, adapter=other)
        for n, p in enumerate(partial)
        for other in ("policy-1", "policy-2", "policy-3")
    ])  # fmt: skip


def check_trainer(name: str, *, checkpointing: bool) -> None:
    """Gradients of PPO with ratio r = exp(log p - log p of before), unclipped: -w A r."""
    tree = small_model(name)
    trained = adapter(tree, 1)
    set_lora_arrays(tree, trained.arrays)
    step = StepGradients(tree, checkpointing=checkpointing)
    if name in OWN_LORA:
        return
    prefix = tuple(n % 50 + 5 for n in range(20))
    rows = [((*prefix, 7, 8, 9), 20), ((*prefix, 9, 8, 7, 6, 5), 21), ((3, 1, 2), 1)]
    weights = [1.0, -0.5, 0.3]
    before = [np.array(logprobs(tree, row)) for row, _ in rows]
    samples = [
        make_sample(
            row,
            positions=range(start, len(row)),
            logprobs=[float(old[at - 1, row[at]]) for at in range(start, len(row))],
        )
        for (row, start), old in zip(rows, before, strict=True)
    ]
    found = step.of_step(StepSamples(samples=samples, weights=weights), Objective(), {}).gradients

    def loss(arrays: Any) -> mx.array:
        model = merged(name, arrays, trained.shape.scale)
        total = mx.array(0.0)
        for (row, start), weight, old in zip(rows, weights, before, strict=True):
            new = logprobs(model, row)
            for at in range(start, len(row)):
                ratio = mx.exp(new[at - 1, row[at]] - float(old[at - 1, row[at]]))
                total = total - weight * ratio
        return total

    expected = mx.grad(loss)(dict(trained.arrays))
    flat: Any = dict(tree_flatten(found))
    size = max(float(mx.linalg.norm(array)) for array in expected.values())
    assert size > 1e-4, name
    for key, array in expected.items():
        gap = float(mx.linalg.norm(flat[key] - array))
        assert gap <= 2e-3 * max(float(mx.linalg.norm(array)), 0.02 * size), (name, key, gap)


def outcome(check: Any, *args: Any, **options: Any) -> str | None:
    """The reason of a refusal; None where the check passes."""
    reason = None
    try:
        check(*args, **options)
    except LegosError as error:
        reason = f"{error}"
    assert reason is None or "cannot be" in reason or "checkpointing" in reason
    return reason


def test_the_table_names_every_architecture() -> None:
    named = {*NOT_TRIED, *NOT_SERVED, *NO_ADAPTERS, *NOT_TRAINED, *NOT_CHECKPOINTED}
    assert named <= {*architectures()}
    assert {*FIXED} <= {*architectures()}


FIXED = (
    "llama", "hunyuan", "gemma4_moe", "deepseek_v32", "gemma3_text", "falcon_h1", "qwen3_moe",
    "qwen3_5", "mistral3", "phi", "afm7", "gemma3n", "dbrx", "nemotron_h", "kimi_k3",
)  # fmt: skip


EVERYTHING = [name for name in architectures() if name not in NOT_TRIED]
NAMES = EVERYTHING if os.environ.get("LEGOS_EVERY_MODEL") else FIXED
"""All takes about ten minutes on two cores, so the slow tests run one of each mechanism."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_architecture_is_wrong_without_an_error(name: str) -> None:
    assert (outcome(check_engine, name) is not None) == (name in NOT_SERVED | NO_ADAPTERS)
    trained = outcome(check_trainer, name, checkpointing=False)
    assert (trained is not None) == (name in NOT_TRAINED)
    checkpointed = outcome(check_trainer, name, checkpointing=True)
    assert (checkpointed is not None) == (name in NOT_TRAINED | NOT_CHECKPOINTED)


def serve(name: str, dtype: mx.Dtype) -> None:
    """Make an engine and load an adapter; each checks the model."""
    model = small_model(name, dtype=dtype)
    loaded = adapter(small_model(name), 1)
    engine = MlxEngine(Ticks(), model, num_vocabulary=VOCABULARY, context=1024)
    engine.load_adapter(loaded).result()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_weights_in_bfloat16_get_the_verdict_of_float32(name: str) -> None:
    """Rounding to 16 bits hides no error of an architecture, and is not taken for one."""
    reason = outcome(serve, name, mx.bfloat16)
    if reason is not None and "GatherMM" in reason:  # on a CPU, MLX has no experts in 16 bits
        assert any(isinstance(module, SwitchLinear) for module in small_model(name).modules())
        return
    assert (reason is not None) == (name in NOT_SERVED | NO_ADAPTERS)
