"""The gated delta rule in chunks: equal to mlx-lm's loop over tokens, with bounded memory."""

import re
import sys
from typing import Any

import delta_peaks
import mlx.core as mx
import numpy as np
import pytest
from delta_peaks import memory_vs_loop
from launched import finished
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from legos.mlx.train.linear_attention import delta_rule
from legos.mlx.train.linear_attention.delta_rule import gated_delta_rule

TOLERANCE = 1e-5  # of an array's norm
RULE: Any = gated_delta_rule


def made(
    tokens: int, *, vectors: bool, heads: int = 4, alike: float = 0.0, gate: float = 1.0
) -> Any:
    """Arguments of the rule for two rows, two heads of keys of size 8, and values of size 6."""
    mx.random.seed(tokens)
    keys = mx.random.normal((2, tokens, 2, 8)) + alike
    q, k = normalize_qk(mx.random.normal((2, tokens, 2, 8)), keys, inv_scale=8**-0.5, eps=1e-6)
    own = (8,) if vectors else ()
    factor = mx.random.uniform(0.01, 16.0, (heads, *(1,) * vectors))
    return (
        q,
        k,
        mx.random.normal((2, tokens, heads, 6)),
        gate * mx.random.normal((2, tokens, heads, *own)),
        mx.random.normal((2, tokens, heads)),
        mx.log(factor),
        mx.ones((heads, *own)),
        mx.random.normal((2, heads, 6, 8)),
    )


def found(rule: Any, arguments: Any, mask: mx.array | None = None, **options: Any) -> list[Any]:
    """Outputs, last state, and the gradient of every argument."""

    def loss(*arguments: mx.array) -> tuple[mx.array, Any]:
        y, state = rule(*arguments, mask, use_kernel=False, **options)
        if mask is not None:
            y = mx.where(mask[..., None, None], y, 0)
        parts = (mx.sum(a * mx.cos(mx.arange(a.size)).reshape(a.shape)) for a in (y, state))
        return sum(parts, mx.zeros(())), (y, state)

    (_, results), gradients = mx.value_and_grad(loss, argnums=[*range(len(arguments))])(*arguments)
    mx.eval(results, gradients)
    return [*results, *gradients]


def check_equal(arguments: Any, mask: mx.array | None = None, **options: Any) -> None:
    expected = found(gated_delta_update, arguments, mask, **options)
    actual = found(RULE, arguments, mask, **options)
    names = ("output", "state", "q", "k", "v", "a", "b", "A_log", "dt_bias", "first state")
    for name, one, other in zip(names, actual, expected, strict=True):
        assert one.dtype == other.dtype, name
        distance, size = (float(np.linalg.norm(np.array(a))) for a in (one - other, other))
        assert distance <= TOLERANCE * size, name


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tokens in (("CHUNK", 4), ("SEGMENT", 8), ("VECTOR_CHUNK", 4), ("VECTOR_SEGMENT", 8)):
        monkeypatch.setattr(delta_rule, name, tokens)


OPTIONS = ({}, {"lower_bound": -5.0}, {"allow_neg_eigval": True})


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("vectors", [False, True])
def test_values_and_gradients_equal_those_of_the_loop(vectors: bool, options: Any) -> None:
    check_equal(made(21, vectors=vectors), **options)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9])
def test_any_number_of_tokens_can_be_computed(tokens: int, vectors: bool) -> None:
    check_equal(made(tokens, vectors=vectors, heads=2))


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("vectors", [False, True])
def test_padding_changes_no_state(vectors: bool) -> None:
    mask = mx.arange(19)[None] < mx.array([[19], [11]])
    arguments = made(19, vectors=vectors)
    check_equal(arguments, mask)
    output, state = RULE(*arguments, mask)
    assert not mx.any(output[1, 11:]).item()
    alone: Any = [array[1:, :11] if n < 5 else array for n, array in enumerate(arguments)]
    expected, last = RULE(*alone[:7], arguments[7][1:])
    assert mx.allclose(output[1, :11], expected[0], atol=1e-6).item()
    assert mx.allclose(state[1], last[0], atol=1e-6).item()


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("gate", [0.1, 30.0])
def test_alike_keys_and_gates_near_zero_and_one_lose_no_accuracy(
    gate: float, vectors: bool
) -> None:
    """Products of 64 gates underflow here, and the terms of a power series would overflow."""
    check_equal(made(70, vectors=vectors, alike=3.0, gate=gate), allow_neg_eigval=not vectors)


def test_rows_in_16_bits_are_computed_in_float32() -> None:
    arguments: Any = [array.astype(mx.bfloat16) for array in made(20, vectors=False)[:7]]
    output, state = RULE(*arguments)
    assert (output.dtype, state.dtype) == (mx.bfloat16, mx.float32)
    expected, last = gated_delta_update(*arguments, use_kernel=False)
    assert mx.allclose(state, last, rtol=1e-5, atol=1e-6).item()
    assert mx.allclose(output, expected, rtol=0.01, atol=1e-3).item()  # one unit of rounding


@pytest.mark.parametrize("vectors", [False, True])
def test_the_state_after_a_first_part_continues_a_row(vectors: bool) -> None:
    def in_parts(*given: Any, use_kernel: bool) -> Any:
        *inputs, factor, bias, state, mask = given
        outputs: list[mx.array] = []
        for cut in (slice(0, 13), slice(13, 30)):
            part: Any = [array[:, cut] for array in inputs]
            output, state = RULE(*part, factor, bias, state, mask)
            outputs.append(output)
        return mx.concatenate(outputs, axis=1), state

    arguments = made(30, vectors=vectors)
    pairs = zip(found(in_parts, arguments), found(RULE, arguments), strict=True)
    assert all(mx.allclose(one, other, rtol=1e-4, atol=1e-5).item() for one, other in pairs)


@pytest.mark.nightly
def test_a_layer_takes_a_quarter_of_the_memory_at_256_tokens() -> None:
    assert memory_vs_loop(256) <= 1 / 4


@pytest.mark.nightly
def test_a_layer_takes_at_most_an_eighth_of_the_memory_at_2048_tokens() -> None:
    lines = finished([sys.executable, delta_peaks.__file__]).splitlines()
    peaks = [float(re.findall(r"([0-9.]+) MiB", line)[0]) for line in lines]
    assert len(peaks) == 4
    assert all(chunks <= loop / 8 for loop, chunks in zip(peaks[::2], peaks[1::2], strict=True))
