"""What is checked of the newest families beyond the table of all architectures.

PYTHONPATH=tests uv run python -m architectures.families [NAME ...]

Small random models. Prefixes of a training step: the gradients with and without sharing are equal.
4 bits: every matrix with 32 inputs or a multiple is quantised; a batch of rows gives the same
log-probabilities as each row alone through a model with the dequantised weights, and an engine and
a trainer accept it. Keys: an engine continues a prompt of 1,100 tokens as a plain pass does.
"""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import blas  # noqa: F401, before MLX, which would be slow
import cyclopts
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from architectures.engines import small_engine
from architectures.references import Row, chosen
from mlx.utils import tree_unflatten
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from legos.apps.markdown import table_head, table_line
from legos.clients.submit import submit_all
from legos.errors import LegosError
from legos.mlx.checks.small_models import small_model
from legos.mlx.generate.capabilities import probe
from legos.mlx.generate.multi_lora.slots import AdapterSlots
from legos.mlx.model.forward import CausalModel
from legos.mlx.model.lora import add_lora, lora_shape
from legos.mlx.train.step_gradients import StepGradients
from legos.records.names import BASE
from legos.records.request import Request
from legos.records.step import BackendConfig

__all__ = ["FAMILIES", "family_row"]

FAMILIES = (
    "gemma4", "gpt_oss", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "ministral3",
    "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next", "smollm3",
)  # fmt: skip
HEAD = table_head((
    "architecture", "shares prefixes in training", "window", "4 bits: trains", "4 bits: serves",
    "1,100 keys",
))  # fmt: skip
GROUP = 32  # weights with one scale
KEYS, CONTEXT, ANSWER = 1100, 2048, 4  # tokens
LARGEST_GAP = 2e-4  # nats
QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)


def family_row(name: str) -> str:
    """The line of an architecture in the table."""
    windows = {
        cache.max_size
        for cache in make_prompt_cache(small_model(name))
        if isinstance(cache, RotatingKVCache)
    }
    return table_line((
        name,
        "yes" if _trainer(small_model(name)).shares else "no",
        " and ".join(map(str, sorted(windows))) or "-",
        _word(lambda: _trainer(_in_4_bits(name)[0])),
        _word(lambda: _check_products(name)),
        _word(lambda: _check_keys(name)),
    ))  # fmt: skip


def _word(check: Callable[[], object]) -> str:
    """Yes, or no where legos refuses it; a wrong number is an error."""
    try:
        check()
    except LegosError:
        return "no"
    return "yes"


def _trainer(tree: Any) -> StepGradients:
    add_lora(tree, lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False), seed=0)
    return StepGradients(tree, BackendConfig(micro_batch_tokens=64))


def _in_4_bits(name: str) -> tuple[Any, Any]:
    """A model in 4 bits, and one with the same weights in float32."""
    packed, plain = small_model(name), small_model(name)

    def fits(_: str, module: Any) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % GROUP == 0

    nn.quantize(packed, group_size=GROUP, bits=4, class_predicate=fits)
    packed.freeze()
    weights = [
        (
            f"{key}.weight",
            mx.dequantize(m["weight"], m["scales"], m["biases"], group_size=GROUP, bits=4),
        )
        for key, m in packed.named_modules()
        if isinstance(m, QUANTISED)
    ]
    plain.update(tree_unflatten(weights))
    mx.eval(packed.parameters(), plain.parameters())
    return packed, plain


def _check_products(name: str) -> None:
    packed, plain = _in_4_bits(name)
    rows = mx.array(np.random.default_rng(0).integers(1, 60, (8, 24)))
    found = nn.log_softmax(packed(rows))
    for row, logprobs in zip(rows, found, strict=True):
        expected = nn.log_softmax(plain(row[None]))[0]
        gap = float(mx.abs(logprobs - expected).max())
        assert gap <= LARGEST_GAP, f"{name}: {gap:.2g} nats in 4 bits"
    probe(CausalModel(packed), AdapterSlots(packed))


def _check_keys(name: str) -> None:
    plain = small_model(name, max_position_embeddings=CONTEXT)
    prompt: Row = tuple(np.random.default_rng(1).integers(1, 60, KEYS).tolist())
    request = Request(prompt_ids=prompt, max_tokens=ANSWER, seed=0, adapter=BASE)
    with closing(small_engine(name, max_position_embeddings=CONTEXT)) as engine:
        (answer,) = submit_all(engine, [request]).result()
    expected = np.array(chosen(plain, prompt + answer.token_ids, KEYS))
    gap = float(np.abs(answer.logprobs - expected).max())
    assert gap <= LARGEST_GAP, f"{name}: {gap:.2g} nats behind {KEYS} tokens"


def main(*names: str) -> None:
    """Print the table."""
    print(HEAD, end="")  # noqa: T201
    for name in names or FAMILIES:
        print(family_row(name), end="", flush=True)  # noqa: T201


if __name__ == "__main__":
    cyclopts.run(main)
