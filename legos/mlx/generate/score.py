"""Exact log-probabilities of whole answers: what an evaluation of a small game reads."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from legos.mlx.generate.prefill import row_blocks

__all__ = ["score_rows"]

Row = tuple[int, ...]
LastLogits = Callable[[Sequence[Row]], mx.array]


def score_rows(
    last_logits: LastLogits,
    prompts: Sequence[tuple[Row, Sequence[Row]]],
    end_ids: tuple[int, ...],
    max_tokens: int,
) -> list[list[float]]:
    """Log-probability (nats, temperature 1) of each continuation as the whole answer.

    Args:
        last_logits: [B, V] next-token logits of B rows.
        prompts: prompt, and its continuations.
        end_ids: ids that end a text; a continuation that begins another one must be ended by one.
        max_tokens: padded tokens of one forward pass.

    Returns:
        One list per prompt, one number per continuation.
    """
    wanted: dict[Row, None] = {}
    plans: list[list[list[tuple[Row, tuple[int, ...]]]]] = []
    for prompt, answers in prompts:
        plan: list[list[tuple[Row, tuple[int, ...]]]] = []
        for answer in answers:
            terms: list[tuple[Row, tuple[int, ...]]] = [
                (prompt + answer[:k], (token,)) for k, token in enumerate(answer)
            ]
            if any(other != answer and other[: len(answer)] == answer for other in answers):
                terms.append((prompt + answer, end_ids))
            plan.append(terms)
            wanted.update(dict.fromkeys(row for row, _ in terms))
        plans.append(plan)
    logprobs = _next_logprobs(last_logits, list(wanted), max_tokens)
    return [
        [
            float(sum(np.logaddexp.reduce(logprobs[row][list(tokens)]) for row, tokens in terms))
            for terms in plan
        ]
        for plan in plans
    ]


def _next_logprobs(
    last_logits: LastLogits, rows: Sequence[Row], max_tokens: int
) -> dict[Row, np.ndarray]:
    """Row -> [V] log-probabilities of its next token."""
    found: dict[Row, np.ndarray] = {}
    for block in row_blocks(rows, max_tokens):
        logits = last_logits(block)
        values = np.array(logits - mx.logsumexp(logits, axis=1, keepdims=True))
        found.update(zip(block, values, strict=True))
    return found
