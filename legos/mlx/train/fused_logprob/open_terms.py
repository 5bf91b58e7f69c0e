"""Log-probabilities and entropy over the whole vocabulary, with one softmax per logit position.

Automatic differentiation would compute a softmax for the entropy and more in the backward pass.
With x the logits at the sampling temperature, n = log sum exp x and p = softmax(x),

    log p_a = x_a - n           H = sum p (n - x)         n = x_t - log p_t
    d log p_a = (1_a - p) dx    dH = -p (x - n + H) dx

so one p gives n (from the likeliest token t, where rounding loses least), the entropy and both
gradients. n and p are arguments of the functions with custom gradients and not their outputs, so
no such function computes an output that is not needed.

C logit positions, V vocabulary, N tokens.
"""

from typing import Any

import mlx.core as mx

from legos.losses.total import BatchArrays, Terms


def open_terms(logits: mx.array, others: Terms, arrays: BatchArrays) -> Terms:
    """``token_terms`` for batches without legal tokens, and divergences on chosen tokens only.

    Args:
        logits: [C, V] float32 logits of the policy being trained.
        others: name -> [C, V] logits of other policies, without gradient.
        arrays: the tokens and their logit positions.
    """
    positions, at, target = arrays.positions, arrays.logit_index, arrays.target

    def tempered(logits: mx.array) -> mx.array:
        return logits / positions.temperature if positions.tempered else logits

    def chosen(x: mx.array, n: mx.array) -> mx.array:
        return x[at, target] - n[at]

    @mx.custom_function
    def trained(x: mx.array, n: mx.array, p: mx.array) -> mx.array:  # noqa: ARG001 - for the vjp
        return chosen(x, n)

    @trained.vjp
    def gradient(primals: Any, cotangent: mx.array, *_: mx.array) -> Any:
        _, n, p = primals
        weight = mx.zeros_like(n).at[at].subtract(cotangent)[:, None]
        return (weight * p).at[at, target].add(cotangent), mx.zeros_like(n), mx.zeros_like(p)

    x = tempered(logits)
    known = _normalised(mx.stop_gradient(x))
    found = {"logprob": trained(x, *known), "entropy": _open_entropy(x, *known)[at]}
    for name, other in others.items():
        x = tempered(other)
        found[name] = chosen(x, _normalised(x)[0])  # same rounding: equal policies differ by 0
    return found


def _normalised(x: mx.array) -> tuple[mx.array, mx.array]:
    """[C] n and [C, V] p."""
    p = mx.softmax(x, axis=1)
    likeliest = mx.argmax(x, axis=1, keepdims=True)
    x_t, p_t = (mx.take_along_axis(each, likeliest, axis=1) for each in (x, p))
    return (x_t - mx.log(p_t))[:, 0], p


def _entropy(x: mx.array, n: mx.array, p: mx.array) -> mx.array:
    """[C] entropy H."""
    return mx.sum(p * (n[:, None] - x), axis=1)  # n - p x would lose digits


_open_entropy: Any = mx.custom_function(_entropy)  # only x gets a gradient


@_open_entropy.vjp
def _gradient_of_entropy(primals: Any, cotangent: mx.array, entropy: mx.array) -> Any:
    x, n, p = primals
    gradient = ((cotangent * (n - entropy))[:, None] - cotangent[:, None] * x) * p
    return gradient, mx.zeros_like(n), mx.zeros_like(p)
