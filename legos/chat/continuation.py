"""Conversations that go on in tokens: what was said stays as sampled, only what is new is rendered.

What a chat template writes after an answer (the end of the turn, the new messages, the beginning of
the next answer) is what the prompts of two conversations have in common at their end that differ in
that answer alone. It is found in token ids, so it needs no more than something that renders.
"""

from collections.abc import Sequence

from legos.data.message import Completion, Message

__all__ = ["ANSWERS", "after_answer", "extended", "probes"]

ANSWERS = ("a", "b")  # no tokenizer merges a letter with a line break or a control token


def probes(new: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Two conversations that differ in one answer and go on with the same messages."""
    return [(Message("user", "?"), Message("assistant", said), *new) for said in ANSWERS]


def after_answer(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The tokens after the answer in the prompts of two ``probes``; empty where there are none."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    length = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
    return tuple(one[len(one) - length :])


def extended(last: Completion, after: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt of the next turn: every token so far, then what comes after the answer.

    An answer that ended by itself holds the end of its turn already. One that was cut, at its limit
    or at a stop text, does not; the end is part of the prompt then, so it is never trained on.

    Args:
        last: the newest completion.
        after: what the template writes after an answer, the end of its turn first.
    """
    said = last.prompt_ids + last.token_ids
    return said + (after[1:] if said[-1:] == after[:1] else after)
