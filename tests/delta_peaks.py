"""Memory and time of the backward pass of layers with the gated delta rule, against mlx-lm's loop.

uv run python tests/delta_peaks.py [TOKENS ...] [--heads 2] [--size 128]
"""

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import blas  # noqa: F401, before MLX, which would be slow
import cyclopts
import mlx.core as mx
from mlx_lm.models import kimi_linear, qwen3_5

from legos.mlx.model.machine import peak_bytes
from legos.mlx.train.linear_attention.delta_rule import compute_in_chunks

__all__ = ["memory_vs_loop"]

HIDDEN, HEADS, SIZE, TOKENS = 64, 2, 128, 2048


def _qwen3_5(heads: int, size: int) -> Any:
    """A layer in which each head has one gate."""
    fields = {
        "linear_num_key_heads": heads // 2,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_conv_kernel_dim": 4,
    }
    return qwen3_5.GatedDeltaNet(_settings(**fields))


def _kimi_linear(heads: int, size: int) -> Any:
    """A layer in which each key dimension has a gate."""
    settings = _settings(linear_attn_config={"num_heads": heads, "head_dim": size})
    return kimi_linear.KimiDeltaAttention(settings, 0)


def _settings(**fields: Any) -> Any:
    return SimpleNamespace(hidden_size=HIDDEN, rms_norm_eps=1e-6, **fields)


LAYERS: Mapping[str, Callable[[int, int], Any]] = {
    "qwen3_5": _qwen3_5,
    "kimi_linear": _kimi_linear,
}


def memory_vs_loop(tokens: int = TOKENS) -> float:
    """The largest share of the loop's peak memory that a layer needs."""
    pairs = [_measured(make(HEADS, SIZE), tokens) for make in LAYERS.values()]
    return max(chunks / loop for (loop, _), (chunks, _) in pairs)


def _measured(layer: Any, tokens: int) -> list[tuple[int, float]]:
    """Peak bytes and seconds of both passes, with the loop over tokens and in chunks."""
    x = mx.random.normal((1, tokens, HIDDEN))
    gradient = mx.grad(lambda x: mx.sum(mx.sin(layer(x))))
    mx.eval(layer.train(), x, gradient(x[:, :8]))
    found: list[tuple[int, float]] = []
    for prepare in (lambda _: None, compute_in_chunks):
        prepare(layer)
        started = time.perf_counter()
        peak = peak_bytes(lambda: mx.eval(gradient(x)))
        found.append((peak, time.perf_counter() - started))
    return found


def main(*tokens: int, heads: int = HEADS, size: int = SIZE) -> None:
    """Print peak and seconds of each layer, both ways."""
    for name, make in LAYERS.items():
        for count in tokens or (TOKENS,):
            for way, found in zip(
                ("loop", "chunks"), _measured(make(heads, size), count), strict=True
            ):
                text = f"{found[0] / 2**20:.1f} MiB, {found[1]:.3f} s"
                print(f"{name}, {count} tokens, {way}: {text}")  # noqa: T201


if __name__ == "__main__":
    cyclopts.run(main)
