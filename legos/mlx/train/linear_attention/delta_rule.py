"""The gated delta rule in chunks of tokens, whose backward pass holds few states.

    S_t = S_{t-1} diag(g_t) (I - beta_t k_t k_t') + beta_t v_t k_t'        y_t = S_t q_t

Let S be the state before a chunk, p_i the product of the gates of its tokens up to i, and P_ij that
of the tokens after j up to i. The tokens of the chunk write D [C, Dv] into the state:

    (I + A) D = beta (V - (p K) S')     A_ij = beta_i (P_ij k_i) k_j  for j < i
    Y = (p Q) S' + M D                  M_ij = (P_ij q_i) k_j         for j <= i
    S_next = S p_C + D' (P_C K)

P_ij is the exponential of a sum of log-gates, never a quotient of products, so that small gates
neither overflow nor underflow it. The backward pass holds the states between segments of some
chunks, and computes one segment at a time again.

B rows, T tokens, C tokens of a chunk, N chunks, Hk heads of keys, of which each serves G heads of
values (Hv = Hk G), Dk and Dv the sizes of the heads.

Sources: Gated Delta Networks, arXiv:2412.06464; its form in chunks, arXiv:2406.06484; gates of
every key dimension, Kimi Linear, arXiv:2510.26692.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update

from legos.mlx.model.forecast import CHUNK, SEGMENT, VECTOR_CHUNK, VECTOR_SEGMENT
from legos.mlx.model.retyped import replace_calls

_Run = Callable[..., tuple[mx.array, mx.array]]
"""Computes a segment from the state before it, the weights of the gates, and q, k, v, a and b."""


def compute_in_chunks(model: nn.Module) -> None:
    """Make the layers of a tree compute the rule as here, and not in mlx-lm's loop over tokens."""
    replace_calls(model, gated_delta_update, gated_delta_rule)


def gated_delta_rule(  # noqa: PLR0917 (mlx-lm calls it by position)
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,  # noqa: N803
    dt_bias: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    *,
    use_kernel: bool = False,  # noqa: ARG001 (these operations run on every device)
    lower_bound: float | None = None,
    allow_neg_eigval: bool = False,
) -> tuple[mx.array, mx.array]:
    """Compute what mlx-lm's ``gated_delta_update`` does, in float32.

    Args:
        q: [B, T, Hk, Dk] queries.
        k: [B, T, Hk, Dk] keys.
        v: [B, T, Hv, Dv] values.
        a: [B, T, Hv] inputs of the gates, or [B, T, Hv, Dk] where each key dimension has one.
        b: [B, T, Hv] logits of beta.
        A_log: logarithm of the factor of the log-gates, broadcast to ``a``.
        dt_bias: added to ``a``.
        state: [B, Hv, Dv, Dk] state before the first token; None: zeros.
        mask: [B, T] False where a token is padding: its output is zero, and the state stays as it
            is; None: no token is padding.
        use_kernel: has no effect.
        lower_bound: of the log-gates, which are a multiple of a sigmoid then; None: softplus.
        allow_neg_eigval: whether beta is in [0, 2] instead of [0, 1].

    Returns:
        [B, T, Hv, Dv] outputs, in the type of ``q``; [B, Hv, Dv, Dk] float32 state after the last
        token.
    """
    rows, tokens, heads, key_size = q.shape
    if state is None:
        state = mx.zeros((rows, *v.shape[2:], key_size), mx.float32)
    vectors = a.ndim == 4
    length = VECTOR_SEGMENT if vectors else SEGMENT
    run = partial(
        _segment,
        heads=(heads, v.shape[2] // heads),
        chunk=min(VECTOR_CHUNK if vectors else CHUNK, 1 << (tokens - 1).bit_length()),
        lower_bound=lower_bound,
        beta_scale=2.0 if allow_neg_eigval else 1.0,
    )
    masks = [None] * -(-tokens // length) if mask is None else _cut(mask, length)
    runs = [partial(run, mask=one) for one in masks]
    output, last, *_ = _in_segments(runs, length)(state, A_log, dt_bias, q, k, v, a, b)
    return output, last


def _cut(array: mx.array, length: int) -> list[mx.array]:
    """[B, T, ...] in parts of so many tokens."""
    return [array[:, start : start + length] for start in range(0, array.shape[1], length)]


def _in_segments(runs: Sequence[_Run], length: int) -> Callable[..., list[mx.array]]:
    """A function of the state, the weights, and inputs [B, T, ...] that computes one segment a run.

    It returns the outputs, the last state, and the states between segments. The backward pass
    begins with a segment when all gradients of the one after it are computed: otherwise MLX might
    compute the cotangents of all states first, and hold the activations of all segments for it.
    """

    @mx.custom_function
    def forward(state: mx.array, factor: mx.array, bias: mx.array, *inputs: mx.array) -> Any:
        outputs: list[mx.array] = []
        states = [state]
        for run, *parts in zip(runs, *(_cut(array, length) for array in inputs), strict=True):
            output, state = run(states[-1], factor, bias, *parts)
            outputs.append(output)
            states.append(state)
        return [mx.concatenate(outputs, axis=1), states[-1], *states[1:-1]]

    @cast(Any, forward).vjp
    def backward(primals: Any, cotangents: Any, results: Any) -> Any:
        first, factor, bias, *inputs = primals
        of_output, of_state, *_ = cotangents
        cut = [_cut(array, length) for array in (of_output, *inputs)]
        segments = list(zip(runs, [first, *results[2:]], *cut, strict=True))
        found: list[list[mx.array]] = []
        done: list[mx.array] = [of_state]
        for run, state, back, *parts in reversed(segments):
            arrays = mx.depends([state, factor, bias, *parts], done)
            _, done = mx.vjp(run, arrays, [back, of_state])
            of_state = done[0]
            found.append(done)
        _, of_factor, of_bias, *of_inputs = zip(*reversed(found), strict=True)
        joined = [mx.concatenate(list(parts), axis=1) for parts in of_inputs]
        return [of_state, sum(of_factor), sum(of_bias), *joined]

    return cast(Any, forward)


def _segment(  # noqa: PLR0917 (gradients are by position)
    state: mx.array,
    A_log: mx.array,  # noqa: N803
    dt_bias: mx.array,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    *,
    mask: mx.array | None,
    heads: tuple[int, int],
    chunk: int,
    lower_bound: float | None,
    beta_scale: float,
) -> tuple[mx.array, mx.array]:
    """Outputs and last state of some chunks; no array is captured, as none would get a gradient."""
    beta = beta_scale * mx.sigmoid(b)
    log_gates = _log_gates(a, A_log, dt_bias, lower_bound)
    if mask is not None:
        beta = mx.where(mask[..., None], beta, 0)
        log_gates = mx.where(mask.reshape(*mask.shape, *(1,) * (a.ndim - 2)), log_gates, 0)
    alone = (heads[0], 1)
    queries, keys = (_in_chunks(array, chunk, alone) for array in (q, k))
    values, betas, gates = (_in_chunks(array, chunk, heads) for array in (v, beta, log_gates))
    output, last = _chunks(
        queries, keys, values, beta=betas[..., None], log_gates=gates, state=state
    )
    output = output.transpose(0, 3, 4, 1, 2, 5).reshape(v.shape[0], -1, *v.shape[2:])
    output = output[:, : v.shape[1]].astype(q.dtype)
    if mask is not None:
        output = mx.where(mask[..., None, None], output, 0)
    return output, last


def _log_gates(
    a: mx.array,
    A_log: mx.array,  # noqa: N803
    dt_bias: mx.array,
    lower_bound: float | None,
) -> mx.array:
    """[B, T, Hv] or [B, T, Hv, Dk] logarithms of the gates, as mlx-lm rounds their inputs."""
    factor = mx.exp(A_log.astype(mx.float32))
    if lower_bound is None:
        return -factor * nn.softplus(a + dt_bias)
    return lower_bound * mx.sigmoid(factor * (a.astype(mx.float32) + dt_bias))


def _in_chunks(x: mx.array, chunk: int, heads: tuple[int, int]) -> mx.array:
    """[B, L, Hk * G, ...] -> float32 [B, Hk, G, N, C, ...], where zeros follow the last token."""
    padding = [(0, 0), (0, -x.shape[1] % chunk), *[(0, 0)] * (x.ndim - 2)]
    x = mx.pad(x.astype(mx.float32), padding)
    x = x.reshape(x.shape[0], -1, chunk, *heads, *x.shape[3:])
    return x.transpose(0, 3, 4, 1, 2, *range(5, x.ndim))


def _chunks(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    beta: mx.array,
    log_gates: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """The chunks of a segment: first all that does not depend on the state, then the states.

    Args:
        q: [B, Hk, 1, N, C, Dk].
        k: the same.
        v: [B, Hk, G, N, C, Dv].
        beta: [B, Hk, G, N, C, 1].
        log_gates: [B, Hk, G, N, C], or [B, Hk, G, N, C, Dk].
        state: [B, Hv, Dv, Dk] before the first chunk.

    Returns:
        [B, Hk, G, N, C, Dv] outputs, and the state after the last chunk.
    """
    single = log_gates.ndim == 5
    decays = _decays(log_gates)  # P
    if single:
        among_keys, mixing = (decays * (x @ k.swapaxes(-1, -2)) for x in (k, q))
        last, since_start = decays[..., -1, :, None], mx.exp(mx.cumsum(log_gates, -1))[..., None]
    else:
        decayed = decays * k[..., None, :, :]  # [..., i, j, Dk]
        both = decayed @ mx.stack([k, q], axis=-1)
        among_keys, mixing = both[..., 0], both[..., 1]
        last, since_start = decays[..., -1, :, :], mx.exp(mx.cumsum(log_gates, -2))
    solved = _inverse(mx.tril(beta * among_keys, -1))
    fresh, old = solved @ (beta * v), solved @ (beta * since_start * k)
    written, whole = last * k, since_start[..., -1:, :]
    shape = state.shape
    state = state.astype(mx.float32).reshape(*v.shape[:3], *shape[2:])
    before: list[mx.array] = []
    added: list[mx.array] = []
    count = v.shape[3]
    by_chunk = (mx.split(array, count, axis=3) for array in (fresh, old, written, whole))
    for parts in zip(*by_chunk, strict=True):
        new, read, keys, decay = (part.squeeze(3) for part in parts)
        before.append(state)
        added.append(new - read @ state.swapaxes(-1, -2))
        state = state * decay + added[-1].swapaxes(-1, -2) @ keys
    states, writes = mx.stack(before, axis=3), mx.stack(added, axis=3)
    output = (since_start * q) @ states.swapaxes(-1, -2) + mixing @ writes
    return output, state.reshape(shape)


def _decays(log_gates: mx.array) -> mx.array:
    """[..., C, C] or [..., C, C, Dk] products of the gates of the tokens after j up to i; j <= i.

    Every sum is of its own log-gates: in a difference of sums from the chunk's start, a small gate
    in both would leave its rounding.
    """
    chunk = log_gates.shape[4]
    vectors = log_gates.ndim - 5
    later = mx.tril(mx.ones((chunk, chunk), mx.bool_), -1).reshape(chunk, chunk, *(1,) * vectors)
    mask = mx.tril(mx.ones((chunk, chunk), mx.bool_)).reshape(later.shape)
    sums = mx.cumsum(mx.where(later, mx.expand_dims(log_gates, 5), 0), axis=4)
    return mx.where(mask, mx.exp(sums), 0)


def _joined(lower: mx.array) -> mx.array:
    """(I + lower)^-1 of strictly lower triangular matrices [..., C, C], C a power of two.

    Halves are inverted and joined. The shorter product (I - L)(I + L^2)(I + L^4)... has terms that
    grow like binomial coefficients where keys are alike, and float32 does not hold their sum.
    """
    size = lower.shape[-1]
    if size <= 2:
        return mx.eye(size) - lower
    half = size // 2
    first, second = _joined(mx.stack([lower[..., :half, :half], lower[..., half:, half:]]))
    corner = -(second @ lower[..., half:, :half] @ first)
    above = mx.concatenate([first, mx.zeros_like(corner)], axis=-1)
    return mx.concatenate([above, mx.concatenate([corner, second], axis=-1)], axis=-2)


_inverse: Any = mx.custom_function(_joined)


@_inverse.vjp
def _inverse_vjp(_: mx.array, cotangent: mx.array, inverse: mx.array) -> mx.array:
    transposed = inverse.swapaxes(-1, -2)
    return mx.tril(-(transposed @ cotangent @ transposed), -1)
